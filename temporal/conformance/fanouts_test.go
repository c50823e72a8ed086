package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// fanOuts are the cases about jobs that wait for branches.
var fanOuts = []testCase{
	{name: "a join adds up all results once", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome {
			return runner.FanOut(children("child", 50)...).Join(of("join")).Result("from the parent")
		}))
		w.handle("child", number)
		w.handle("join", sum)
		w.start()
		id := w.enqueue(of("parent"), runner.Subject("s"))
		w.Equal(w.over(id), job.PipelineSucceeded)
		join := w.only("join")
		w.Equal(string(join.Result), "[1275,0]")
		w.Equal(*join.ParentID, id)
		w.Equal(join.Subject, "s")
		parent := w.get(id)
		w.Equal(parent.State, job.Succeeded)
		w.Equal(string(parent.Result), `"from the parent"`)
		w.Equal(len(w.ids("child")), 50)
	}},
	{name: "a parent waits without a slot", run: func(w *world) {
		hold, open := podtest.Latch(w.T)
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut(children("child", 3)...) }))
		w.handle("child", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "3" {
				<-hold
			}
			return nil, nil
		})
		w.start()
		w.slots(1)
		id := w.enqueue(of("parent"))
		w.wait("two children have ended", func() bool {
			j := w.get(id)
			return j.State == job.Waiting && j.Progress != nil && *j.Progress.Done == 2 && *j.Progress.Total == 3
		})
		w.Equal(w.get(id).Pod, nil)
		open()
		w.Equal(w.ended(id).State, job.Succeeded)
	}},
	{name: "a fan-out without children succeeds", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut().Join(of("join")) }))
		w.handle("join", sum)
		w.start()
		w.Equal(w.over(w.enqueue(of("parent"))), job.PipelineSucceeded)
		w.Equal(string(w.only("join").Result), "[0,0]")
	}},
	{name: "fan-outs are nested, and a branch is a chain", run: func(w *world) {
		w.handle("top", returns(func() *runner.Outcome {
			return runner.FanOut(of("middle", "4"), of("middle", "5"), runner.Chain(of("child", "1"), of("add"))).Join(of("join"))
		}))
		w.handle("middle", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			var n int
			err := json.Unmarshal(j.Args.JSON, &n)
			return runner.FanOut(children("child", n)...).Join(of("total")), err
		})
		w.handle("child", number)
		w.handle("add", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var n int
			err := j.PreviousResult(ctx, &n)
			return runner.Done(n + 100), err
		})
		w.handle("total", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			total := 0
			for b, err := range j.Branches(ctx) {
				var n int
				if err = errors.Join(err, b.Result(&n)); err != nil {
					return nil, err
				}
				total += n
			}
			return runner.Done(total), nil
		})
		w.handle("join", sum)
		w.start()
		w.Equal(w.over(w.enqueue(of("top"))), job.PipelineSucceeded)
		w.Equal(string(w.only("join").Result), "[126,0]") // 10 + 15 + 101
	}},
	{name: "a pipeline with a failed branch is partial, and the join sees the failure", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut(children("child", 4)...).Join(of("join")) }))
		w.handle("child", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "2" {
				return nil, errors.New("no two")
			}
			return number(ctx, j)
		}, runner.Retry(2, soon))
		w.handle("join", sum)
		w.start()
		id := w.enqueue(of("parent"))
		w.Equal(w.over(id), job.PipelinePartial)
		w.Equal(string(w.only("join").Result), "[8,1]")
		parent := w.get(id)
		w.Equal(*parent.Outcome, job.Warning)
		w.Equal(podtest.ReasonOf(parent), job.ReasonChildrenFailed)
	}},
	{name: "a job whose children all fail has failed, and nothing follows", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut(children("child", 3)...).Join(of("join")) }))
		w.handle("child", fails(errors.New("no")))
		w.handle("join", sum)
		w.start()
		id := w.enqueue(of("parent"))
		w.Equal(w.over(id), job.PipelineFailed)
		w.Equal(podtest.ReasonOf(w.get(id)), job.ReasonChildrenFailed)
		w.Equal(len(w.ids("join")), 0)
	}},
	{name: "a join that always runs sees that all branches failed", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome {
			return runner.FanOut(children("child", 3)...).Join(of("join"), runner.Always)
		}))
		w.handle("child", fails(errors.New("no")))
		w.handle("join", sum)
		w.start()
		w.Equal(w.over(w.enqueue(of("parent"))), job.PipelinePartial)
		w.Equal(string(w.only("join").Result), "[0,3]")
	}},
	{name: "the first failure cancels the other branches of a fail-fast fan-out", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome {
			return runner.FanOut(of("hangs"), of("hangs"), of("fails"), runner.With(of("hangs"), runner.Subject("s"))).FailFast()
		}))
		w.handle("hangs", func(ctx context.Context, _ *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() })
		w.handle("fails", fails(errors.New("no")))
		w.start()
		id := w.enqueue(of("parent"))
		j := w.ended(id)
		w.Equal(j.State, job.Failed)
		w.Equal(podtest.ReasonOf(j), job.ReasonChildrenFailed)
		for _, child := range w.ids("hangs") {
			w.Equal(w.ended(child).State, job.Cancelled)
		}
	}},
	{name: "a fan-out of hundreds counts each child once", run: func(w *world) {
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut(children("child", 300)...).Join(of("join")) }))
		w.handle("child", number)
		w.handle("join", sum)
		w.start()
		w.Equal(w.over(w.enqueue(of("parent"))), job.PipelineSucceeded)
		w.Equal(string(w.only("join").Result), "[45150,0]")
	}},
	{name: "children run in other lanes and with other priorities", run: func(w *world) {
		pgtest.Exec(w, w.pool, `insert into trapeze.lanes (name) values ('pods')`)
		w.handle("parent", returns(func() *runner.Outcome {
			return runner.FanOut(runner.With(of("child", "1"), runner.Lane("pods")), runner.With(of("child", "2"), runner.Priority(50))).Join(of("join"))
		}))
		w.handle("child", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "1" == (j.Lane() == "pods") && string(j.Args.JSON) == "2" == (j.Priority() == 50) {
				return runner.Done(1), nil
			}
			return nil, errors.New("not the lane or priority of its step")
		})
		w.handle("join", sum)
		w.start()
		w.Equal(w.over(w.enqueue(of("parent"))), job.PipelineSucceeded)
		w.Equal(string(w.only("join").Result), "[2,0]")
	}},
	{name: "a deferred job ends with its last part", run: func(w *world) {
		tokens := make(chan string, 1)
		w.handle("deferred", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			if err == nil {
				tokens <- token
			}
			return runner.Deferred(3).Join(of("join")), err
		})
		w.handle("join", sum)
		w.start()
		id := w.enqueue(of("deferred"))
		token := receive(w, tokens)
		w.NoErr(w.r.Complete(w.Context(), id, token, 1, runner.Part("a"))) // possibly before the handler has returned
		w.inState(id, job.Waiting)
		for range 2 { // the second call has no effect
			w.NoErr(w.r.Complete(w.Context(), id, token, 2, runner.Part("b")))
		}
		w.True(errors.Is(w.r.Complete(w.Context(), id, "guess", 2, runner.Part("c")), job.ErrWrongToken))
		w.Equal(w.get(id).State, job.Waiting)
		w.NoErr(w.r.Complete(w.Context(), id, token, nil, runner.Part("c"), runner.PartFailed(errors.New("no disk"))))
		w.Equal(w.over(id), job.PipelinePartial)
		w.Equal(string(w.only("join").Result), "[3,1]")
	}},
	{name: "a token is the same in each attempt", run: func(w *world) {
		var tokens trail
		w.handle("deferred", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			tokens.add("%s", token)
			if j.Attempt() == 1 {
				return nil, errors.Join(err, errors.New("once"))
			}
			return runner.Deferred(1), err
		}, runner.Retry(2, soon))
		w.start()
		id := w.enqueue(of("deferred"))
		w.inState(id, job.Waiting)
		all := tokens.all()
		w.Equal(len(all), 2)
		w.Equal(all[0], all[1])
		w.NoErr(w.r.Complete(w.Context(), id, all[0], "done"))
		w.Equal(w.ended(id).State, job.Succeeded)
	}},
	{name: "parts without a token fail the attempt", run: func(w *world) {
		w.handle("deferred", returns(func() *runner.Outcome { return runner.Deferred(1).Join(of("join")) }))
		w.handle("join", nothing)
		w.start()
		j := w.ended(w.enqueue(of("deferred")))
		w.Equal(j.State, job.Failed)
		w.True(strings.HasPrefix(podtest.Message(j), "call Job.Token before returning Deferred"))
		w.Equal(len(w.ids("join")), 0)
	}},
	{name: "a deferred job is cancelled while it waits", run: func(w *world) {
		w.handle("deferred", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			_, err := j.Token(ctx)
			return runner.Deferred(1).Join(of("join")), err
		})
		w.handle("join", nothing)
		w.start()
		id := w.enqueue(of("deferred"))
		w.inState(id, job.Waiting)
		_, err := w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
		w.Equal(w.ended(id).State, job.Cancelled)
		w.Equal(len(w.ids("join")), 0)
	}},
	{name: "a retried fan-out runs only its failed branches again", run: func(w *world) {
		fixed := make(chan struct{})
		w.handle("parent", returns(func() *runner.Outcome { return runner.FanOut(children("child", 4)...).Join(of("join")) }))
		var seen trail
		w.handle("child", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%s", j.Args.JSON)
			select {
			case <-fixed:
				return number(ctx, j)
			default:
				return nil, errors.New("not yet")
			}
		})
		w.handle("join", sum)
		w.start()
		id := w.enqueue(of("parent"))
		w.Equal(w.over(id), job.PipelineFailed)
		close(fixed)
		again, err := w.r.Admin("ana").RetryPipeline(w.Context(), id, nil)
		w.NoErr(err)
		w.Equal(len(again), 4)
		w.wait("the pipeline succeeds", func() bool { return w.over(id) == job.PipelineSucceeded })
		w.Equal(string(w.only("join").Result), "[10,0]")
		w.Equal(len(seen.all()), 8)
	}},
}
