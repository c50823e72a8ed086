package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// pipelines are the cases about jobs that follow each other.
var pipelines = []testCase{
	{name: "a step follows with the result, the subject and the priority of the step before it", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.Then(of("b", `{"n":1}`)).Result(41) }))
		w.handle("b", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var n int
			err := j.PreviousResult(ctx, &n)
			return runner.Done(fmt.Sprintf("%d %s %s %d step %d of %d", n+1, j.Args.JSON, j.Subject(), j.Priority(), j.Step(), j.PipelineID())), err
		})
		w.start()
		id := w.enqueue(of("a"), runner.Subject("s"), runner.Priority(33))
		w.Equal(w.over(id), job.PipelineSucceeded)
		b := w.only("b")
		w.Equal(string(b.Result), fmt.Sprintf(`"42 {\"n\":1} s 33 step 1 of %d"`, id))
		w.Equal(*b.ParentID, id)
		w.Equal(string(w.get(id).Result), "41")
	}},
	{name: "a declared chain runs in order", run: func(w *world) {
		w.handle("double", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			n := 1
			if err := j.PreviousResult(ctx, &n); err != nil && !errors.Is(err, job.ErrNotFound) {
				return nil, err
			}
			return runner.Done(2 * n), nil
		})
		w.start()
		double := of("double")
		id := w.enqueue(runner.Chain(double, double, double, double, double))
		w.Equal(w.over(id), job.PipelineSucceeded)
		p, err := w.r.Admin("").Pipeline(w.Context(), id)
		w.NoErr(err)
		w.Equal(p.Step, 4)
		w.Equal(string(w.get(p.LastJob).Result), "32")
	}},
	{name: "each step of a chain has its own options", run: func(w *world) {
		w.handle("a", nothing)
		w.handle("b", nothing)
		w.start()
		w.over(w.enqueue(runner.Chain(of("a"), runner.With(of("b"), runner.Subject("other"), runner.Priority(99))), runner.Subject("s")))
		b := w.only("b")
		w.Equal(b.Subject, "other")
		w.Equal(b.Priority, 99)
	}},
	{name: "a step that a handler returns comes before the rest of its chain", run: func(w *world) {
		var seen trail
		step := func(o func() *runner.Outcome) does {
			return func(_ context.Context, j *raw) (*runner.Outcome, error) { seen.add("%s", j.Kind()); return o(), nil }
		}
		w.handle("a", step(func() *runner.Outcome { return runner.Then(of("b")) }))
		w.handle("b", step(func() *runner.Outcome { return runner.Done(nil) }))
		w.handle("c", step(func() *runner.Outcome { return runner.Done(nil) }))
		w.start()
		w.Equal(w.over(w.enqueue(runner.Chain(of("a"), of("c")))), job.PipelineSucceeded)
		w.Equal(seen.String(), "a b c")
	}},
	{name: "a handler ends its chain", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.EndChain("enough") }))
		w.handle("b", nothing)
		w.start()
		id := w.enqueue(runner.Chain(of("a"), of("b")))
		w.Equal(string(w.ended(id).Result), `"enough"`)
		w.Equal(w.over(w.enqueue(runner.Chain(of("b"), of("a"), of("b")))), job.PipelineSucceeded)
		w.Equal(len(w.ids("b")), 1) // only the first step of the second chain
	}},
	{name: "no step follows a failure", run: func(w *world) {
		w.handle("a", nothing)
		w.handle("fails", fails(errors.New("no")), runner.Retry(2, soon))
		w.start()
		id := w.enqueue(runner.Chain(of("a"), of("fails"), of("a")))
		w.Equal(w.over(id), job.PipelineFailed)
		w.Equal(w.only("fails").Attempt, 2)
		w.Equal(len(w.ids("a")), 1)
	}},
	{name: "a failed pipeline is retried from the failed step", run: func(w *world) {
		w.handle("a", nothing)
		w.handle("b", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "1" {
				return nil, errors.New("not with 1")
			}
			return nil, nil
		})
		w.start()
		id := w.enqueue(runner.Chain(of("a"), of("b", "1"), of("a")))
		w.Equal(w.over(id), job.PipelineFailed)
		again, err := w.r.Admin("ana").RetryPipeline(w.Context(), id, of("b", "2"))
		w.NoErr(err)
		w.Equal(again, w.ids("b"))
		w.wait("the pipeline succeeds", func() bool { return w.over(id) == job.PipelineSucceeded })
		w.Equal(len(w.ids("a")), 2)
		w.Equal(w.only("b").Epoch, 2)
	}},
	{name: "a long chain ends", run: func(w *world) {
		w.handle("count", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			n := 0
			if err := j.PreviousResult(ctx, &n); err != nil && !errors.Is(err, job.ErrNotFound) {
				return nil, err
			}
			if n == 40 {
				return runner.Done(n), nil
			}
			return runner.Then(of("count")).Result(n + 1), nil
		})
		w.start()
		id := w.enqueue(of("count"))
		w.wait("the last step has ended", func() bool {
			list := w.ids("count")
			return len(list) == 41 && w.get(list[40]).State == job.Succeeded
		})
		w.Equal(w.over(id), job.PipelineSucceeded)
	}},
	{name: "a pipeline crosses lanes with different engines", run: func(w *world) {
		pgtest.Exec(w, w.pool, `insert into trapeze.lanes (name) values ('pods')`)
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%s", j.Lane())
			return nil, nil
		})
		w.start()
		there, back := runner.With(of("a"), runner.Lane("pods")), runner.With(of("a"), runner.Lane(job.DefaultLane))
		w.Equal(w.over(w.enqueue(runner.Chain(of("a"), there, back, there))), job.PipelineSucceeded)
		w.Equal(seen.String(), "default pods default pods")
	}},
}
