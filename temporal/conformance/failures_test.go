package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// failures are the cases about jobs that follow a failure.
var failures = []testCase{
	{name: "a job with an on-failure job is followed by it when it fails for good", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return nil, job.Code("E7", fmt.Errorf("try %d", j.Attempt()))
		}, runner.Retry(2, soon))
		w.handle("after", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			f, err := j.Failure(ctx)
			return runner.Done(fmt.Sprintf("%s %s %s: %s %s, attempt %d", f.Kind, f.JSON, f.State, f.Error, f.ErrorCode, f.Attempt)), err
		})
		w.start()
		id := w.enqueue(of("a", "5"), runner.OnFailure(of("after")), runner.Subject("s"))
		w.Equal(w.ended(id).State, job.Failed)
		after := w.only("after")
		w.Equal(string(after.Result), `"a 5 failed: try 2 E7, attempt 2"`)
		w.Equal(after.PipelineID, after.ID) // the on-failure job starts a separate pipeline
		w.Equal(after.Subject, "s")
		w.Equal(w.count(id, "job.followed"), 1)
	}},
	{name: "a job that succeeds on a later attempt is not followed", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, errors.New("once")
			}
			return nil, nil
		}, runner.Retry(2, soon), runner.OnFailure(of("after")))
		w.handle("after", nothing)
		w.start()
		w.Equal(w.ended(w.enqueue(of("a"))).State, job.Succeeded)
		w.Equal(len(w.ids("after")), 0)
	}},
	{name: "a kind has an on-failure job", run: func(w *world) {
		w.handle("a", fails(errors.New("no")), runner.OnFailure(of("after", `"the kind's"`)))
		w.handle("after", number)
		w.start()
		w.ended(w.enqueue(of("a")))
		w.Equal(string(w.only("after").Result), `"the kind's"`)
		w.ended(w.enqueue(of("a"), runner.OnFailure(of("after", `"its own"`))))
		ids := w.ids("after")
		w.Equal(len(ids), 2)
		w.Equal(string(w.ended(ids[1]).Result), `"its own"`)
	}},
	{name: "the compensations of a failed pipeline run in reverse order", run: func(w *world) {
		var seen trail
		w.handle("a", returns(func() *runner.Outcome { return runner.Done(nil).OnFailure(of("undo", `"a"`)) }))
		w.handle("b", returns(func() *runner.Outcome { return runner.Done(nil).OnFailure(of("undo", `"b"`)) }))
		w.handle("fails", fails(errors.New("no")))
		w.handle("undo", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%s", j.Args.JSON)
			return nil, nil
		})
		w.start()
		w.Equal(w.over(w.enqueue(runner.Chain(of("a"), of("b"), of("fails")))), job.PipelineFailed)
		w.wait("both compensations have run", func() bool { return len(seen.all()) == 2 })
		w.Equal(seen.String(), `"b" "a"`)
		for _, id := range w.ids("undo") {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
	}},
	{name: "a pipeline that succeeds is not compensated", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.Done(nil).OnFailure(of("undo")) }))
		w.handle("undo", nothing)
		w.start()
		w.Equal(w.over(w.enqueue(runner.Chain(of("a"), of("a")))), job.PipelineSucceeded)
		w.Equal(len(w.ids("undo")), 0)
	}},
	{name: "a cancelled job is followed if its on-failure job also applies to cancels", run: func(w *world) {
		w.handle("a", func(ctx context.Context, _ *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() })
		w.handle("after", nothing)
		w.start()
		id := w.enqueue(of("a"), runner.OnFailureOrCancel(of("after")))
		w.inState(id, job.Running)
		_, err := w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
		w.Equal(w.ended(id).State, job.Cancelled)
		w.Equal(w.only("after").State, job.Succeeded)
		other := w.enqueue(of("a"), runner.OnFailure(of("after")))
		w.inState(other, job.Running)
		_, err = w.r.Admin("ana").Cancel(w.Context(), other)
		w.NoErr(err)
		w.Equal(w.ended(other).State, job.Cancelled)
		w.Equal(len(w.ids("after")), 1)
	}},
	{name: "the failure of a branch is followed", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome {
			return runner.FanOut(runner.With(of("fails"), runner.OnFailure(of("after"))), of("ok"))
		}))
		w.handle("ok", nothing)
		w.handle("fails", fails(errors.New("no")))
		w.handle("after", nothing)
		w.start()
		w.Equal(w.ended(w.enqueue(of("parent"))).State, job.Succeeded)
		w.Equal(w.only("after").State, job.Succeeded)
	}},
	{name: "a job that is too old fails and is followed", run: func(w *world) {
		w.o = runner.Options{MaxAge: time.Second}
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		})
		w.handle("after", nothing)
		w.start()
		id := w.enqueue(of("a"), runner.OnFailure(of("after")))
		w.inState(id, job.Running)
		w.wait("the job is too old", func() bool {
			w.NoErr(w.r.Maintain(w.Context()))
			return w.get(id).State.Terminal()
		})
		w.Equal(podtest.ReasonOf(w.get(id)), job.ReasonDeadline)
		open()
		w.wait("the follower has been submitted", func() bool { return len(w.ids("after")) == 1 })
		w.Equal(len(w.ids("after")), 1)
	}},
}
