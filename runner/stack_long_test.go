//go:build long

package runner_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod without notifications receives the request with its next heartbeat.
func TestStackRequestWithoutNotifications(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	wait, _ := latch(t)
	quietly := runner.Options{DirectURL: "off", HeartbeatInterval: 200 * time.Millisecond}
	r := start(t, pgtest.Connect(t, url), quietly, map[string]handler{"k": waitOn(wait)})
	asker, err := runner.New(pgtest.Connect(t, url), runner.Options{DirectURL: "off"})
	is.NoErr(err)
	defer asker.Close()
	id := enqueueStarted(t, r, rawArgs("k"))
	stack, err := asker.Admin("ann").Stack(t.Context(), id)
	is.NoErr(err)
	is.True(strings.Contains(stack.Stack, "runner_test.") && strings.Contains(stack.Stack, "waitOn"))
	is.Equal(stack.PodID, r.PodID())
	later := enqueue(t, r, rawArgs("k"), runner.Delay(time.Hour))
	_, err = asker.Admin("ann").Stack(t.Context(), later)
	is.True(errors.Is(err, job.ErrNotRunning))

	// A pod that runs an earlier release does not read requests, so it does not answer.
	pool := pgtest.Connect(t, url)
	exec(t, pool, `alter table trapeze.claim_requests add constraint silent check (answered_at is null)`)
	began := time.Now()
	_, err = asker.Admin("ann").Stack(t.Context(), id)
	is.True(errors.Is(err, job.ErrNoAnswer))
	is.True(time.Since(began) < 15*time.Second)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.claim_requests`), 0) // the request is removed even without an answer
}
