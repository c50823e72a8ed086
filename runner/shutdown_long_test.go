//go:build long

package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestShutdownWithoutDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	wait, _ := gate(t)
	cut, fail := gate(t)
	var tries ends
	o := named("a")
	o.ShutdownGrace, o.OnRetry = 50*time.Millisecond, tries.add
	r := make1(t, pool, o, map[string]does{
		"deaf":  func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"heeds": func(ctx context.Context, j *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() },
		"ends":  func(ctx context.Context, j *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, nil },
		"fails": func(context.Context, *raw) (*runner.Outcome, error) {
			<-cut
			return nil, job.Retryable(errors.New("no luck"))
		},
		"fine": nothing,
	})
	stop, done := goes(t, r)
	for _, kind := range []string{"deaf", "heeds", "ends"} {
		begun(t, r, of(kind))
	}
	failed := begun(t, r, of("fails"))
	proxy.Blackhole()
	fail()
	stop()
	select {
	case err := <-done:
		is.NoErr(err)
	case <-time.After(15 * time.Second):
		t.Fatal("Run is still waiting for an unresponsive database")
	}
	is.Equal(len(tries.of(failed)), 0) // the job's next attempt was never stored
	b := start(t, direct, named("b"), map[string]does{"deaf": nothing, "heeds": nothing, "ends": nothing, "fails": nothing})
	quiet(t, direct) // recovery makes the jobs that could not be handed back pending again
	checkHistory(t, direct, b)
}
