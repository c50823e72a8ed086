package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// untilCancelled returns a handler that blocks until its context is cancelled, sends the cause, and succeeds.
func untilCancelled(began chan<- struct{}, causes chan<- error) does {
	return func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		close(began)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return runner.Then(of("never")).Result("late"), nil
	}
}

// commands are the cases about operators' commands.
var commands = []testCase{
	{name: "a job that waits is cancelled and never runs", run: func(w *world) {
		var seen trail
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { seen.add("ran"); return nil, nil })
		w.start()
		id := w.enqueue(of("a"), runner.Delay(time.Hour))
		c, err := w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
		w.Equal(c.State, job.Cancelled)
		w.Equal(podtest.ReasonOf(w.get(id)), job.ReasonCancelled)
		_, err = w.r.Admin("ana").Cancel(w.Context(), id)
		w.True(errors.Is(err, job.ErrAlreadyTerminal))
		w.Equal(seen.String(), "")
	}},
	{name: "a running job is cancelled regardless of its outcome", run: func(w *world) {
		began, causes := make(chan struct{}), make(chan error, 1)
		w.handle("a", untilCancelled(began, causes), runner.Retry(5, soon))
		w.handle("never", nothing)
		w.start()
		id := w.enqueue(of("a"), runner.Subject("s"))
		receive(w, began)
		_, err := w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
		w.True(errors.Is(receive(w, causes), job.ErrCancelled))
		j := w.ended(id)
		w.Equal(j.State, job.Cancelled)
		w.Equal(podtest.ReasonOf(j), job.ReasonCancelled)
		w.Equal(string(j.Result), "")
		w.Equal(len(w.ids("never")), 0)
	}},
	{name: "a stopped job ends at once, and its handler is cancelled", differs: "`trapeze force-cancel` cancels the handler's context with `ErrLeaseLost`", run: func(w *world) {
		began, causes := make(chan struct{}), make(chan error, 1)
		w.handle("a", untilCancelled(began, causes))
		w.handle("never", nothing)
		w.start()
		id := w.enqueue(of("a"))
		receive(w, began)
		c, err := w.r.Admin("ana").ForceCancel(w.Context(), id)
		w.NoErr(err)
		w.Equal(c.State, job.Cancelled)
		cause := job.ErrForceCancelled
		if w.temporal() {
			cause = job.ErrLeaseLost
		}
		w.True(errors.Is(receive(w, causes), cause))
		w.Equal(podtest.ReasonOf(w.ended(id)), job.ReasonForceCancelled)
		w.Equal(len(w.ids("never")), 0)
	}},
	{name: "a job is cancelled between two attempts", run: func(w *world) {
		w.handle("a", fails(job.RetryAfter(time.Hour, errors.New("quota"))))
		w.start()
		id := w.enqueue(of("a"))
		w.wait("the retry is planned", func() bool { return w.count(id, "job.retried") == 1 })
		_, err := w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
		j := w.ended(id)
		w.Equal(j.State, job.Cancelled)
		w.Equal(j.Attempt, 1)
	}},
	{name: "a snoozed job is cancelled", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.Snooze(time.Hour, "busy") }))
		w.start()
		id := w.enqueue(of("a"))
		w.wait("the job is snoozed", func() bool { return w.count(id, "job.snoozed") == 1 })
		_, err := w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
		w.Equal(w.ended(id).State, job.Cancelled)
	}},
	{name: "a cancelled pipeline cancels its running branches, and no step follows", run: func(w *world) {
		began, causes := make(chan struct{}, 3), make(chan error, 3)
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut(children("a", 3)...).Join(of("never")) }))
		w.handle("a", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			began <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, nil
		})
		w.handle("never", nothing)
		w.start()
		id := w.enqueue(of("parent"))
		for range 3 {
			receive(w, began)
		}
		_, err := w.r.Admin("ana").CancelPipeline(w.Context(), id)
		w.NoErr(err)
		for range 3 {
			w.True(errors.Is(receive(w, causes), job.ErrCancelled))
		}
		w.Equal(w.over(id), job.PipelineCancelled)
		w.Equal(len(w.ids("never")), 0)
	}},
	{name: "a job runs after its approval", run: func(w *world) {
		w.handle("a", nothing)
		w.start()
		made, err := w.r.Enqueue(w.Context(), of("a"), runner.NeedsApproval())
		w.NoErr(err)
		w.Equal(made.State, job.AwaitingApproval)
		w.blocked(made.ID, job.BlockerApproval)
		w.NoErr(w.r.Admin("bob").Approve(w.Context(), made.ID))
		w.Equal(w.ended(made.ID).State, job.Succeeded)
		w.True(errors.Is(w.r.Admin("bob").Approve(w.Context(), made.ID), job.ErrNotAwaitingApproval))
		w.Equal(w.count(made.ID, "job.approved"), 1)
	}},
	{name: "a step that handlers return into a lane with approval waits for it", run: func(w *world) {
		pgtest.Exec(w, w.pool, `insert into trapeze.lanes (name, engine, requires_approval) values ('careful', $1, true)`, w.engine.name)
		w.handle("a", returns(func() *runner.Outcome { return runner.Then(of("b"), runner.Lane("careful")) }))
		w.handle("b", nothing)
		w.start()
		id := w.enqueue(of("a"))
		w.ended(id)
		b := w.ids("b")
		w.Equal(len(b), 1)
		w.Equal(w.get(b[0]).State, job.AwaitingApproval)
		w.NoErr(w.r.Admin("bob").Approve(w.Context(), b[0]))
		w.Equal(w.over(id), job.PipelineSucceeded)
	}},
	{name: "a failed job runs again with new arguments and a higher fence", run: func(w *world) {
		var fences []int64
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			fences = append(fences, j.Fence())
			if string(j.Args.JSON) == "1" {
				return nil, errors.New("not with 1")
			}
			return runner.Done(j.Attempt()), nil
		})
		w.start()
		id := w.enqueue(of("a", "1"))
		w.Equal(w.ended(id).State, job.Failed)
		again, err := w.r.Admin("ana").Retry(w.Context(), id, of("a", "2"))
		w.NoErr(err)
		w.Equal(again, []int64{id})
		j := w.inState(id, job.Succeeded)
		w.Equal(j.Epoch, 2)
		w.Equal(string(j.Result), "1")
		w.True(fences[1] > fences[0])
	}},
	{name: "the priority of a waiting job changes", run: func(w *world) {
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%s:%d", j.Args.JSON, j.Priority())
			return nil, nil
		})
		w.start()
		w.slots(1)
		_, err := w.r.Admin("ana").Pause(w.Context())
		w.NoErr(err)
		first, second := w.enqueue(of("a", "1")), w.enqueue(of("a", "2"))
		w.NoErr(w.r.Admin("ana").SetPriority(w.Context(), second, 77, false))
		_, err = w.r.Admin("ana").Resume(w.Context())
		w.NoErr(err)
		w.ended(first)
		w.ended(second)
		w.Equal(seen.String(), "2:77 1:10")
	}},
	{name: "a lane moves to the other engine and back without losing a job", run: func(w *world) {
		pgtest.Exec(w, w.pool, `insert into trapeze.lanes (name) values ('moves')`)
		var fences []int64
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%s", j.Args.JSON)
			return nil, nil
		})
		w.handle("again", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			fences = append(fences, j.Fence())
			return nil, errors.New("no")
		})
		w.start()
		again := w.enqueue(of("again"), runner.Lane("moves"))
		w.ended(again)
		want := []string{}
		for n, name := range []string{w.engine.name, job.EnginePostgreSQL, w.engine.name, job.EnginePostgreSQL} {
			w.Equal(w.ended(w.enqueue(of("a", string(rune('0'+2*n))), runner.Lane("moves"))).State, job.Succeeded)
			_, err := w.r.Admin("ana").SetLane(w.Context(), "moves", job.LaneChange{Engine: &name})
			w.NoErr(err)
			during := w.enqueue(of("a", string(rune('1'+2*n))), runner.Lane("moves"))
			m, err := w.r.Admin("ana").ContinueLaneMove(w.Context(), "moves", time.Minute)
			w.NoErr(err)
			w.Equal(m, job.LaneMove{Lane: "moves", Engine: name})
			w.Equal(w.ended(during).State, job.Succeeded)
			_, err = w.r.Admin("ana").Retry(w.Context(), again, nil)
			w.NoErr(err)
			w.wait("it has run again", func() bool { j := w.get(again); return j.State == job.Failed && j.Epoch == n+2 })
			want = append(want, string(rune('0'+2*n)), string(rune('1'+2*n)))
		}
		w.Equal(seen.all(), want)
		for n := range fences[1:] {
			w.True(fences[n+1] > fences[n]) // regardless of the engine that runs the job
		}
	}},
}
