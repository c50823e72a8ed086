package runnertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestCallBatchResults(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	calls := 0
	handler := func(_ context.Context, jobs []*runner.Job[step]) []runner.BatchResult {
		calls++
		results := make([]runner.BatchResult, len(jobs))
		for i, j := range jobs {
			is.Equal(j.ID(), int64(i+1)) // the jobs are in the order of the args
			j.Progress(int64(i), 4)
			switch j.Args.Name {
			case "error":
				results[i].Err = errors.New("no")
			case "next":
				results[i].Outcome = runner.Then(last{}).InTx(leave("x"))
			}
		}
		return results
	}
	runs := runnertest.CallBatch(t, handler, []step{{Name: "a"}, {Name: "error"}, {Name: "next"}, {Name: "b"}})
	is.Equal(calls, 1)
	for i, want := range []job.State{job.Succeeded, job.Pending, job.Succeeded, job.Succeeded} {
		runs[i].RequireState(want)
		is.Equal(*runs[i].Progress[0].Done, int64(i))
	}
	is.Equal(runs[1].Err.Error(), "no")
	is.Equal(runs[2].Next.Kind, "last")
	is.Equal(len(runs[2].InTx), 1)
	runs = runnertest.CallBatch(t, handler, []step{{Name: "error"}}, claim{Attempt: 5})
	runs[0].RequireState(job.Failed)
}

// A job that has crashed a pod, one whose context has ended, and each job of a call that panics are called as on a pod.
func TestCallBatchExceptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var sizes []int
	handler := func(_ context.Context, jobs []*runner.Job[step]) []runner.BatchResult {
		sizes = append(sizes, len(jobs))
		return make([]runner.BatchResult, len(jobs))
	}
	over, cancel := context.WithCancelCause(t.Context())
	cancel(runner.ErrTimeout)
	runs := runnertest.CallBatch(t, handler, make([]step, 3), claim{Context: over}, claim{}, claim{})
	is.Equal(sizes, []int{2})
	runs[0].RequireState(job.Pending)
	is.True(errors.Is(runs[0].Err, runner.ErrTimeout))
	sizes = nil
	runnertest.CallBatch(t, handler, make([]step, 1), claim{Crashes: 1})
	is.Equal(sizes, []int{1})

	runs = runnertest.CallBatch(t, func(_ context.Context, jobs []*runner.Job[step]) []runner.BatchResult {
		if jobs[len(jobs)-1].Args.Name == "bad" {
			panic("oh")
		}
		return make([]runner.BatchResult, len(jobs))
	}, []step{{}, {Name: "bad"}})
	runs[0].RequireState(job.Succeeded)
	runs[1].RequireState(job.Pending)
	is.Equal(runs[1].Class, job.ClassPanic)
	is.True(strings.Contains(runs[1].Err.Error(), "call_batch_test.go")) // the stack
}

// stepsInBatches registers a batch handler for step, and a handler for last.
func stepsInBatches(before func(*runner.Job[step])) func(r *runner.Runner) {
	return func(r *runner.Runner) {
		runner.HandleBatch(r, func(_ context.Context, jobs []*runner.Job[step]) []runner.BatchResult {
			results := make([]runner.BatchResult, len(jobs))
			for i, j := range jobs {
				before(j)
				results[i] = runner.BatchResult{Outcome: do(j.Args), Err: j.Checkpoint(j.Context(), "half")}
			}
			return results
		}, runner.BatchSize(3))
		runner.Handle(r, func(ctx context.Context, j *runner.Job[last]) (*runner.Outcome, error) { return do(j.Args.step), nil })
	}
}

// A pod dies while it handles a batch. Each job takes effect once, as if it had run alone.
func TestHarnessBatchTakeover(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	h := runnertest.New(t, pool, runner.Options{}, stepsInBatches(func(*runner.Job[step]) {}))
	for i, at := range points {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			is := is.New(t)
			ids := map[string]int64{}
			for _, name := range []string{"a", "b", "c"} {
				name = fmt.Sprintf("%s %s", name, at)
				ids[name] = h.Enqueue(step{Name: name, Then: name + " next"})
			}
			h.DieAt(at, "step")
			h.RunUntilIdle()
			is.Equal(h.Crashes(), i+1)
			for name, id := range ids {
				is.Equal(h.Pipeline(id).Status, job.PipelineSucceeded)
				is.Equal(count(t, pool, name), 1)
				is.Equal(count(t, pool, name+" next"), 1)
			}
		})
	}
}

// A job that kills each pod fails at its crash limit. The jobs that were in the same call succeed.
func TestHarnessPoisonedBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var h *runnertest.Harness
	h = runnertest.New(t, pool, runner.Options{}, stepsInBatches(func(j *runner.Job[step]) {
		if j.Args.Name == "poison" {
			h.Die()
		}
	}))
	a, poison, b := h.Enqueue(step{Name: "a"}), h.Enqueue(step{Name: "poison"}), h.Enqueue(step{Name: "b"})
	h.RunUntilIdle()
	h.RequireState(a, job.Succeeded)
	h.RequireState(b, job.Succeeded)
	h.RequireState(poison, job.Failed)
	is.Equal(count(t, pool, "a")+count(t, pool, "b"), 2)
}
