package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// When a chain moves to another lane, a waiting job takes over the slot in the first lane, on this pod or on another.
func TestSlotFreedByChainMove(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]string{"on each pod": "slots_per_pod", "on all pods": "slots"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			pool := pgtest.Connect(t, url)
			exec(t, pool, `insert into trapeze.lanes (name, `+limit+`) values ('one', 1)`)
			wait, open := latch(t)
			long, end := latch(t)
			at := func(gate <-chan struct{}) handler {
				return func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
					select {
					case <-gate:
					case <-ctx.Done():
					}
					return nil, nil
				}
			}
			o := silent
			pod := start(t, pgtest.Connect(t, url), o, map[string]handler{"first": at(wait), "long": at(long), "k": succeed})
			enqueueStarted(t, pod, runner.Chain(rawArgs("first"), runner.With(rawArgs("long"), runner.Lane("default"))), runner.Lane("one"))
			k := enqueue(t, pod, rawArgs("k"), runner.Lane("one"))
			is.Equal(get(t, pod, k).State, job.Pending)
			other := newRunner(t, pool, silent, nil)
			is.Equal(waitEnded(t, other, enqueue(t, other, rawArgs("k"), runner.AllowUnregistered())).State, job.Succeeded) // the claims for k's notification are over
			began := time.Now()
			open()
			is.Equal(waitEnded(t, pod, k).State, job.Succeeded)
			is.True(time.Since(began) < 10*time.Second) // without waiting for the next heartbeat or poll
			end()
		})
	}
}
