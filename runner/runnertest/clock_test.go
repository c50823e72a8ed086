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

func TestHarnessDelayedJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{}, steps)
	id := h.Enqueue(last{}, runner.Delay(time.Hour))
	h.RunUntilIdle()
	h.RequireState(id, job.Pending)
	h.Advance(59 * time.Minute)
	h.RunUntilIdle()
	h.RequireState(id, job.Pending) // one minute is left
	h.Advance(time.Minute)
	h.RunUntilIdle()
	h.RequireState(id, job.Succeeded)
	is.Equal(h.Transitions(id), []job.State{job.Pending, job.Running, job.Succeeded})
}

func TestHarnessSnoozeBackoff(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	calls := 0
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
			if calls++; calls < 3 {
				return runner.Snooze(time.Minute, "not yet").WithBackoff(), nil
			}
			return nil, nil
		})
	})
	id := h.Enqueue(step{})
	for _, pass := range []struct {
		by    time.Duration
		calls int
	}{{0, 1}, {59 * time.Second, 1}, {time.Second, 2}, {time.Minute, 2}, {time.Minute, 3}} {
		h.Advance(pass.by)
		h.RunUntilIdle()
		is.Equal(calls, pass.calls) // called again after one minute, and again two minutes later
	}
	h.RequireState(id, job.Succeeded)
}

func TestHarnessRetryBackoff(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, runner.RetryAfter(24*time.Hour, errors.New("closed today"))
			}
			return nil, nil
		})
	})
	id := h.Enqueue(step{})
	h.RunUntilIdle()
	h.RequireState(id, job.Pending)
	h.Advance(24 * time.Hour)
	h.RunUntilIdle()
	h.RequireState(id, job.Succeeded)
	is.Equal(h.Job(id).Attempt, 2)
}

func TestHarnessApprovalExpiry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{ApprovalTTL: 2 * time.Hour}, steps)
	approved, late := h.Enqueue(last{}, runner.NeedsApproval()), h.Enqueue(last{}, runner.NeedsApproval())
	h.Advance(time.Hour)
	h.RunUntilIdle()
	h.RequireState(approved, job.AwaitingApproval)
	is.NoErr(h.Runner().Admin("someone").Approve(t.Context(), approved))
	h.Advance(time.Hour + time.Second)
	h.RunUntilIdle()
	h.RequireState(approved, job.Succeeded)
	h.RequireState(late, job.Cancelled)
	is.Equal(*h.Job(late).Reason, job.ReasonExpired)
}

func TestHarnessMaxAge(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{MaxAge: time.Hour}, steps)
	old := h.Enqueue(last{})
	h.Advance(2 * time.Hour)
	young := h.Enqueue(last{})
	h.RunUntilIdle()
	h.RequireState(old, job.Failed)
	is.Equal(*h.Job(old).Reason, job.ReasonDeadline)
	h.RequireState(young, job.Succeeded)
}

func TestHarnessDeferredJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var token string
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[step]) (_ *runner.Outcome, err error) {
			token, err = j.Token(ctx)
			return runner.Deferred(1), err
		})
	})
	id := h.Enqueue(step{})
	h.RunUntilIdle()
	h.RequireState(id, job.Waiting)
	is.NoErr(h.Runner().Complete(t.Context(), id, token, "done"))
	h.RunUntilIdle()
	h.RequireState(id, job.Succeeded)
}
