package runnertest_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// The harness is not idle while a job waits for a place that is free.
func TestHarnessRunsJobsOfKeys(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var now, most, calls atomic.Int64
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[first]) (*runner.Outcome, error) {
			defer now.Add(-1)
			most.Store(max(most.Load(), now.Add(1)))
			calls.Add(1)
			return nil, nil
		}, runner.ConcurrencyPerKey(1))
	})
	for range 3 {
		for _, subject := range []string{"", "s"} {
			for _, delay := range []time.Duration{0, time.Hour} {
				_, err := h.Runner().Enqueue(t.Context(), first{}, runner.Key("tenant"), runner.Subject(subject), runner.Delay(delay))
				is.NoErr(err)
			}
		}
	}
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(6))
	h.Advance(time.Hour)
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(12))
	is.Equal(most.Load(), int64(1))
	for _, j := range h.Jobs() {
		is.Equal(j.State, job.Succeeded)
		is.Equal(j.Key, "tenant")
	}
}
