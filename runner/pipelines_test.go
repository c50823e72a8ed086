package runner_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pipeline lists its planned steps before the jobs for them exist.
func TestPipelinePlannedSteps(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, open := latch(t)
	r := start(t, pool, named("a"), map[string]handler{
		"first": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child")).Join(rawArgs("join")), nil
		},
		"child": func(context.Context, *raw) (*runner.Outcome, error) { <-hold; return nil, nil },
		"join":  succeed,
		"last":  succeed,
	})
	id := enqueue(t, r, runner.Chain(rawArgs("first"), rawArgs("last")), runner.Pipeline("emissions"))
	inState(t, r, id, job.Waiting)
	p, err := r.Admin("").Pipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(p.Name, "emissions")
	is.Equal(p.Status, job.PipelineRunning)
	is.Equal(*p.Progress.Total, int64(1))
	var kinds []string
	for _, part := range strings.Split(string(p.Planned), `"kind":"`)[1:] {
		kinds = append(kinds, part[:strings.Index(part, `"`)])
	}
	is.Equal(kinds, []string{"join", "last"}) // the planned steps do not exist yet
	open()
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	p, err = r.Admin("").Pipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(p.Kind, "last")
	is.Equal(p.Step, 2)
	is.True(p.FinishedAt != nil)
	lone := enqueue(t, r, rawArgs("last"))
	waitEnded(t, r, lone)
	p, err = r.Admin("").Pipeline(t.Context(), lone) // a single job is a pipeline of one step
	is.NoErr(err)
	is.Equal(p.Status, job.PipelineSucceeded)
	page, err := view.Pipelines(t.Context(), inside.Of(r).Store, view.PipelineFilter{})
	is.NoErr(err)
	is.Equal(len(page.Pipelines), 1) // single jobs are not listed as pipelines
	is.Equal(page.Pipelines[0].ID, id)
	jobs, err := view.Jobs(t.Context(), inside.Of(r).Store, job.Filter{})
	is.NoErr(err)
	is.Equal(len(jobs.Jobs), 4) // children are not listed
	_, err = r.Admin("").Pipeline(t.Context(), 12345678)
	is.True(errors.Is(err, job.ErrNotFound))
}

// Cancelling a pipeline cancels only unfinished jobs and returns their ids.
func TestAbortPipelineWithOpenJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var told atomic.Int64
	o := named("a")
	o.Slots = 3
	r := start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("child", 6)...).Join(rawArgs("join")), nil
		},
		"child": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "1" {
				return nil, nil
			}
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), job.ErrCancelled) {
				told.Add(1)
			}
			return runner.Then(rawArgs("join")), nil // the cancelled pipeline does not continue
		},
		"join": succeed,
		"only": succeed,
	})
	id := enqueue(t, r, rawArgs("parent"))
	pgtest.Wait(t, "one child has ended, and three are running", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.done`) == 1 && r.Running() == 3
	})
	open := queryOne[[]int64](t, pool, `select array_agg(id order by id) from (select id from trapeze.live union all select id from trapeze.parked) o`)
	operator := newRunner(t, pool, named("operator"), nil)
	aborted, err := operator.Admin("me").CancelPipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(aborted, open) // the waiting parent, two pending jobs and three running ones
	quiet(t, pool)
	is.Equal(waitPipeline(t, pool, id), "cancelled")
	is.Equal(told.Load(), int64(3))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'cancelled'`), 6)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), 1)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where reason = 'pipeline_cancelled'`), 3)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'join'`), 0)
	_, err = operator.Admin("me").CancelPipeline(t.Context(), id)
	is.True(errors.Is(err, job.ErrAlreadyTerminal))
	_, err = operator.Admin("me").CancelPipeline(t.Context(), id+1_000_000)
	is.True(errors.Is(err, job.ErrNotFound))
	checkHistory(t, pool, r)
}

func TestPipelineRetryWithNewArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var firsts atomic.Int64
	r := start(t, pool, named("a"), map[string]handler{
		"first": func(context.Context, *raw) (*runner.Outcome, error) { firsts.Add(1); return nil, nil },
		"fails": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) != `{"good":true}` {
				return nil, errors.New("bad")
			}
			return nil, nil
		},
		"last": succeed,
	})
	id := enqueue(t, r, runner.Chain(rawArgs("first"), rawArgs("fails"), rawArgs("last")))
	is.Equal(waitPipeline(t, pool, id), "failed")
	again, err := r.Admin("me").RetryPipeline(t.Context(), id, nil)
	is.NoErr(err)
	is.Equal(len(again), 1)
	is.Equal(waitPipeline(t, pool, id), "failed") // the pipeline fails again for the same reason
	again, err = r.Admin("me").RetryPipeline(t.Context(), id, map[string]bool{"good": true})
	is.NoErr(err)
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(firsts.Load(), int64(1)) // the previous step does not run again
	j := get(t, r, again[0])
	is.Equal(j.Epoch, 3)
	is.Equal(eventsOf(t, r, again[0])[3:6], []string{"job.operator_retry", "job.promoted", "job.claimed"})
	_, err = r.Admin("me").RetryPipeline(t.Context(), id, nil)
	is.True(errors.Is(err, job.ErrNotFailed))
	checkHistory(t, pool, r)
}

// Retrying a fan-out repeats only the branches that did not succeed, at any depth. The join then sees the results of all branches.
func TestRetryFailedFanOutBranches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var healed atomic.Bool
	var ran, joined atomic.Int64
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("good", "1"), rawArgs("fans"), rawArgs("bad", "10")).FailFast().Join(rawArgs("join")), nil
		},
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("bad", "1"), rawArgs("bad", "2")).Result(100), nil
		},
		"good": func(ctx context.Context, j *raw) (*runner.Outcome, error) { ran.Add(1); return number(ctx, j) },
		"bad": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if !healed.Load() {
				return nil, errors.New("bad")
			}
			return number(ctx, j)
		},
		"join": sum(t, &joined),
	})
	id := enqueue(t, r, rawArgs("parent"))
	is.Equal(waitPipeline(t, pool, id), "failed")
	quiet(t, pool)
	good := ran.Load()
	_, err := r.Admin("me").RetryPipeline(t.Context(), id, map[string]bool{"good": true})
	is.True(errors.Is(err, job.ErrInvalid)) // new arguments are rejected because the parent does not run again
	healed.Store(true)
	before := queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded' and id in (select id from trapeze.jobs where kind = 'good')`)
	again, err := r.Admin("me").RetryPipeline(t.Context(), id, nil)
	is.NoErr(err)
	is.True(len(again) > 0)
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(joined.Load(), int64(1))
	is.Equal(queryOne[string](t, pool, `select result::text from trapeze.job where kind = 'join'`), `{"failed":0,"total":111}`)
	is.True(before == 0 || ran.Load() == good) // branches that had succeeded do not run again
	checkHistory(t, pool, r)
}

// A partial pipeline has finished, and its last step has seen which branches failed.
func TestRetryPartialPipeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("good"), rawArgs("bad")), nil
		},
		"good": succeed,
		"bad":  func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("bad") },
	})
	id := enqueue(t, r, rawArgs("parent"))
	is.Equal(waitPipeline(t, pool, id), "partial")
	_, err := r.Admin("me").RetryPipeline(t.Context(), id, nil)
	is.True(errors.Is(err, job.ErrNotFailed))
}

// Rows that an operator deletes with SQL must not make a pipeline wait forever.
func TestDriftIsCorrectedAndReported(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, open := latch(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(append(many("child", 3), runner.With(rawArgs("gone"), runner.Delay(3_600_000_000_000)))...), nil
		},
		"child": func(context.Context, *raw) (*runner.Outcome, error) { <-hold; return nil, nil },
		"gone":  succeed,
	})
	id := enqueue(t, r, rawArgs("parent"))
	inState(t, r, id, job.Waiting)
	last, drifts, err := upkeep.Reconcile(t.Context(), inside.Of(r).Store, 0, 10)
	is.NoErr(err)
	is.Equal(len(drifts), 0) // there is nothing to correct
	is.Equal(last, int64(0))
	exec(t, pool, `delete from trapeze.parked where kind = 'gone'`)
	exec(t, pool, `update trapeze.fan_outs set open = 7 where id = $1`, id)
	_, drifts, err = upkeep.Reconcile(t.Context(), inside.Of(r).Store, 0, 10)
	is.NoErr(err)
	is.Equal(drifts, []upkeep.Drift{{ID: id, OpenBefore: 7, FailedBefore: 0, Open: 3, Failed: 1}})
	open()
	is.Equal(waitPipeline(t, pool, id), "partial")
	is.True(slices.Contains(eventsOf(t, r, id), "job.succeeded"))
}
