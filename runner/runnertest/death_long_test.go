//go:build long

package runnertest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// chainDeaths returns the kinds of the steps of the chain during which the pod dies at a point.
func chainDeaths(runnertest.Point) []string { return []string{"first", "last"} }

func TestFanOutTakeover(t *testing.T) {
	t.Parallel()
	for _, at := range points {
		for _, kind := range []string{"first", "step", "last"} {
			t.Run(fmt.Sprintf("%s of %s", at, kind), func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				pool := effects(t)
				h := runnertest.New(t, pool, runner.Options{Slots: 2}, steps)
				branches := []string{"b1", "b2", "b3", "b4"}
				id := h.Enqueue(first{step{Name: "a", Fan: branches, Then: "c"}})
				h.DieAt(at, kind)
				h.RunUntilIdle()
				is.Equal(h.Crashes(), 1)                               // the pod died as requested
				is.Equal(h.Pipeline(id).Status, job.PipelineSucceeded) // another pod took over
				for _, name := range append(branches, "a", "c") {
					is.Equal(count(t, pool, name), 1) // each step took effect once
				}
				is.Equal(len(h.Jobs("last")), 1) // there is only one join
			})
		}
	}
}

func TestHandOffTakeoverWithoutWrites(t *testing.T) {
	t.Parallel()
	for _, at := range points {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := effects(t)
			calls := 0
			h := runnertest.New(t, pool, runner.Options{Slots: 1}, func(r *runner.Runner) {
				runner.Handle(r, func(context.Context, *runner.Job[first]) (*runner.Outcome, error) {
					calls++
					return runner.Then(last{}), nil
				})
				runner.Handle(r, func(context.Context, *runner.Job[last]) (*runner.Outcome, error) {
					return runner.Done("end").InTx(leave("end")), nil
				})
			})
			id := h.Enqueue(first{})
			h.DieAt(at, "first")
			h.RunUntilIdle()
			is.Equal(h.Pipeline(id).Status, job.PipelineSucceeded)
			is.Equal(count(t, pool, "end"), 1)
			next := h.Jobs("last")
			is.Equal(len(next), 1) // only one next step
			switch at {
			case runnertest.AfterClaim:
				is.Equal(calls, 1) // the dead pod had not called the handler
			case runnertest.AfterFinish:
				is.Equal(calls, 1)           // the outcome had been committed
				is.Equal(next[0].Crashes, 1) // the dead pod owned the next step but had not started it
			default:
				is.Equal(calls, 2) // the outcome had not been committed
			}
		})
	}
}

func TestPodDeathDuringSnooze(t *testing.T) {
	t.Parallel()
	for at, want := range map[runnertest.Point]int{runnertest.DuringCommit: 2, runnertest.AfterFinish: 1} {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			calls, snoozes := 0, 0
			h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
				runner.Handle(r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
					calls, snoozes = calls+1, j.Snoozes()
					return runner.Snooze(time.Hour, "not yet"), nil
				})
			})
			id := h.Enqueue(step{})
			h.DieAt(at)
			h.RunUntilIdle()
			is.Equal(calls, want) // the handler ran again if its snooze had not been committed
			h.RequireState(id, job.Pending)
			h.Advance(time.Hour)
			h.RunUntilIdle()
			is.Equal(snoozes, 1) // the job was snoozed only once
		})
	}
}

func TestJobKillingEveryPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{}, steps)
	poison, other := h.Enqueue(last{}), h.Enqueue(step{})
	for range 3 {
		h.DieAt(runnertest.BeforeFinish, "last")
	}
	h.RunUntilIdle()
	is.Equal(h.Crashes(), 3)
	h.RequireState(poison, job.Failed)
	is.Equal(*h.Job(poison).Reason, job.ReasonCrashed)
	h.RequireState(other, job.Succeeded)
	is.True(slices.Contains(h.Transitions(poison), job.Failed))
}
