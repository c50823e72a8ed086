//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The pod that promotes a delayed job may be unable to run it, so it must notify the other pods.
func TestDelayedJobPromotedElsewhere(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	// Make promotion slow, as on a busy server.
	exec(t, pool, `create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return old; end $$`)
	exec(t, pool, `create trigger slow before delete on trapeze.parked for each row execute function public.slow()`)
	web := start(t, pool, runner.Options{PodName: "web", Disabled: true}, map[string]handler{"k": succeed})
	works := start(t, pgtest.Connect(t, url), runner.Options{PodName: "works"}, map[string]handler{"k": succeed})
	heartbeats(t, pool, works, 2)
	worst := time.Duration(0)
	for range 8 {
		const delay = 700 * time.Millisecond
		began := time.Now()
		inState(t, web, enqueue(t, web, rawArgs("k"), runner.Delay(delay)), job.Succeeded)
		worst = max(worst, time.Since(began)-delay)
	}
	if worst > 3*time.Second {
		t.Fatalf("a delayed job started %s late", worst)
	}
}
