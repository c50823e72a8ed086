//go:build long

package runnertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// By default, a job is retried after its first four errors, and a waiting job never expires. A job can therefore survive a month-long
// outage.
func TestDefaultRetriesAndExpiry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tries := 0
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[step]) (*runner.Outcome, error) {
			tries++
			return nil, errors.New("no answer")
		})
		runner.Handle(r, func(context.Context, *runner.Job[last]) (*runner.Outcome, error) { return nil, nil })
	})
	failing := h.Enqueue(step{})
	for i, wait := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		h.Advance(wait)
		h.RunUntilIdle()
		is.Equal(tries, i+1)
	}
	h.RequireState(failing, job.Failed)
	is.Equal(*h.Job(failing).Reason, job.ReasonAttemptsExhausted)
	elsewhere := h.Enqueue(runner.Raw{Name: "elsewhere"}, runner.AllowUnregistered())
	unapproved := h.Enqueue(last{}, runner.NeedsApproval())
	h.Advance(30 * 24 * time.Hour)
	h.RunUntilIdle()
	h.RequireState(elsewhere, job.Pending)
	h.RequireState(unapproved, job.AwaitingApproval)
}
