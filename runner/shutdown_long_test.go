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
	wait, _ := latch(t)
	cut, fail := latch(t)
	var tries ends
	o := named("a")
	o.ShutdownGrace, o.OnRetry = 50*time.Millisecond, tries.add
	r := newRunner(t, pool, o, map[string]handler{
		"deaf":  func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"heeds": func(ctx context.Context, j *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() },
		"ends":  func(ctx context.Context, j *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, nil },
		"fails": func(context.Context, *raw) (*runner.Outcome, error) {
			<-cut
			return nil, job.Retryable(errors.New("no luck"))
		},
		"fine": succeed,
	})
	stop, done := runInBackground(t, r)
	for _, kind := range []string{"deaf", "heeds", "ends"} {
		enqueueStarted(t, r, rawArgs(kind))
	}
	failed := enqueueStarted(t, r, rawArgs("fails"))
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
	b := start(t, direct, named("b"), map[string]handler{"deaf": succeed, "heeds": succeed, "ends": succeed, "fails": succeed})
	quiet(t, direct) // recovery makes the jobs that could not be handed back pending again
	checkHistory(t, direct, b)
}
