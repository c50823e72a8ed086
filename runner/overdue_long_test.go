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

func TestMaxAgeOfRunningJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	causes := make(chan error, 2)
	handlers := map[string]handler{"nobody": succeed}
	for _, kind := range []string{"a", "b"} {
		handlers[kind] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			if kind == "a" {
				return runner.Then(rawArgs("nobody")), nil
			}
			return nil, job.Retryable(errors.New("late"))
		}
	}
	// The pod that performs the maintenance enforces the deadline itself; the other pod learns of it with its next heartbeat.
	a := start(t, pool, runner.Options{PodName: "a", Kinds: []string{"a"}, MaxAge: time.Second}, handlers)
	start(t, pool, runner.Options{PodName: "b", Kinds: []string{"b"}, MaxAge: time.Second}, handlers)
	ids := []int64{
		enqueue(t, a, rawArgs("a"), runner.Subject("s")), enqueue(t, a, rawArgs("b"), runner.Subject("s")),
		enqueue(t, a, rawArgs("nobody")),
	}
	later := enqueue(t, a, rawArgs("nobody"), runner.Delay(time.Hour))
	for _, id := range ids {
		j := waitEnded(t, a, id)
		is.Equal(j.State, job.Failed)
		is.Equal(reasonOf(j), job.ReasonDeadline)
	}
	is.True(errors.Is(<-causes, job.ErrDeadline))
	is.True(errors.Is(<-causes, job.ErrDeadline))
	pgtest.Wait(t, "the slot is free", func() bool { return a.Running() == 0 })
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id is not null`), 0) // a late result is ignored
	is.Equal(get(t, a, later).State, job.Pending)
	checkHistory(t, pool, a)
}
