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
			wait, open := gate(t)
			long, end := gate(t)
			at := func(gate <-chan struct{}) does {
				return func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
					select {
					case <-gate:
					case <-ctx.Done():
					}
					return nil, nil
				}
			}
			o := silent
			pod := start(t, pgtest.Connect(t, url), o, map[string]does{"first": at(wait), "long": at(long), "k": nothing})
			begun(t, pod, runner.Chain(of("first"), runner.Step(of("long"), runner.Lane("default"))), runner.Lane("one"))
			k := enqueue(t, pod, of("k"), runner.Lane("one"))
			is.Equal(get(t, pod, k).State, job.Pending)
			other := make1(t, pool, silent, nil)
			is.Equal(ended(t, other, enqueue(t, other, of("k"), runner.Foreign())).State, job.Succeeded) // the claims for k's notification are over
			began := time.Now()
			open()
			is.Equal(ended(t, pod, k).State, job.Succeeded)
			is.True(time.Since(began) < 10*time.Second) // without waiting for the next heartbeat or poll
			end()
		})
	}
}
