package runner_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestDeleteEndedJobsAndPipelines(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"k": succeed, "waits": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("k"), rawArgs("waits")).Join(rawArgs("k")), nil
		},
	})
	lone := enqueue(t, r, rawArgs("k"), runner.IdempotencyKey("key"))
	inState(t, r, lone, job.Succeeded)
	n, err := r.Admin("ann").Delete(t.Context(), lone)
	is.NoErr(err)
	is.Equal(n, 1)
	_, err = r.GetJob(t.Context(), lone)
	is.True(errors.Is(err, job.ErrNotFound))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where id = $1`, lone), 0)
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", lone)), []string{"job.delete by ann"})
	_, err = r.Admin("ann").Delete(t.Context(), lone)
	is.True(errors.Is(err, job.ErrNotFound))
	anew, err := r.Enqueue(t.Context(), rawArgs("k"), runner.IdempotencyKey("key"))
	is.NoErr(err)
	is.True(!anew.Duplicate) // the key of a deleted job is free
	inState(t, r, anew.ID, job.Succeeded)
	_, err = r.Admin("ann").Delete(t.Context(), anew.ID)
	is.NoErr(err)

	parent := enqueue(t, r, rawArgs("fans"))
	pgtest.Wait(t, "a branch has ended", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.job where pipeline_id = $1 and state = 'succeeded'`, parent) == 1
	})
	branch := queryOne[int64](t, pool, `select id from trapeze.job where pipeline_id = $1 and state = 'succeeded'`, parent)
	_, err = r.Admin("ann").Delete(t.Context(), parent)
	is.True(errors.Is(err, job.ErrNotTerminal))
	_, err = r.Admin("ann").Delete(t.Context(), branch)
	is.True(errors.Is(err, job.ErrPartOfPipeline)) // the join will read the branch's result
	open()
	quiet(t, pool)
	_, err = r.Admin("ann").Delete(t.Context(), branch)
	is.True(errors.Is(err, job.ErrPartOfPipeline)) // deleting the branch would make the fan-out's counts wrong
	n, err = r.Admin("ann").Delete(t.Context(), parent)
	is.NoErr(err)
	is.Equal(n, 4)
	for _, table := range []string{"jobs", "done", "fan_outs", "pipelines", "job_progress"} {
		is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.`+table), 0) // no row is left
	}
}

func TestBulkCancelRetryByFilter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"k": succeed, "other": succeed, "waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-wait:
				return nil, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		},
	})
	const n = 1500
	list := make([]job.Args, n)
	for i := range list {
		list[i] = runner.With(rawArgs("k"), runner.Delay(time.Hour))
	}
	_, err := r.EnqueueMany(t.Context(), list, runner.Delay(time.Hour))
	is.NoErr(err)
	running := enqueueStarted(t, r, rawArgs("waits"), runner.Subject("x"))
	kept := enqueue(t, r, rawArgs("other"), runner.Delay(time.Hour))

	dry, err := r.Admin("ann").CancelMany(t.Context(), runner.Filter{Kind: "k"}, true)
	is.NoErr(err)
	is.Equal([]int{dry.Matched, dry.Done, len(dry.Sample)}, []int{n, 0, 10})
	is.Equal(len(auditEntries(t, r, "jobs")), 0) // a dry run changes nothing
	m, err := r.Admin("ann").CancelMany(t.Context(), runner.Filter{Kind: "k"}, false)
	is.NoErr(err)
	is.Equal([]int{m.Matched, m.Done, m.Skipped}, []int{n, n, 0})
	m, err = r.Admin("ann").CancelMany(t.Context(), runner.Filter{Subject: "x", States: []job.State{job.Running}}, false)
	is.NoErr(err)
	is.Equal(m.Done, 1)
	inState(t, r, running, job.Cancelled)
	open()
	is.Equal(get(t, r, kept).State, job.Pending)
	m, err = r.Admin("eve").CancelMany(t.Context(), runner.Filter{Kind: "unknown"}, false)
	is.NoErr(err)
	is.Equal(m.Matched, 0)

	m, err = r.Admin("bob").RetryMany(t.Context(), runner.Filter{Kind: "k"}, false)
	is.NoErr(err)
	is.Equal(m.Matched, 0) // no job failed, and the filter does not include cancelled jobs
	m, err = r.Admin("bob").RetryMany(t.Context(), runner.Filter{Kind: "k", States: []job.State{job.Cancelled}, Since: time.Now().Add(-time.Hour)}, false)
	is.NoErr(err)
	is.Equal([]int{m.Matched, m.Done, m.Skipped}, []int{n, n, 0})
	pgtest.Wait(t, "all of the jobs have run", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.job where kind = 'k' and state = 'succeeded' and epoch = 2`) == n
	})
	is.Equal(auditEntries(t, r, "jobs"), []string{"jobs.cancel by ann", "jobs.cancel by ann", "jobs.cancel by eve", "jobs.retry by bob", "jobs.retry by bob"}) // one audit entry per command
	for _, f := range []runner.Filter{{}, {States: []job.State{job.Succeeded}}} {
		_, err = r.Admin("ann").CancelMany(t.Context(), f, true)
		is.True(errors.Is(err, job.ErrInvalid))
		_, err = r.Admin("ann").RetryMany(t.Context(), f, true)
		is.True(errors.Is(err, job.ErrInvalid))
	}
}

// A cancelled pipeline can be retried with a filter that selects its parents, its children, or both.
func TestRetryFilterParentsAndChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var free atomic.Bool
	r := start(t, pool, runner.Options{}, map[string]handler{
		"fans": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "2" {
				return runner.FanOut(rawArgs("fans", "1"), rawArgs("fans", "1")).Join(rawArgs("k")), nil
			}
			return runner.FanOut(rawArgs("waits"), rawArgs("waits")).Join(rawArgs("k")), nil
		},
		"k": succeed,
		"waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			if free.Load() {
				return nil, nil
			}
			select {
			case <-wait:
			case <-ctx.Done():
			}
			return nil, context.Cause(ctx)
		},
	})
	defer open()
	id := enqueue(t, r, rawArgs("fans", "2"))
	pgtest.Wait(t, "four branches are running", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running' and kind = 'waits'`) == 4
	})
	aborted, err := r.Admin("ann").CancelPipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(len(aborted), 7)
	quiet(t, pool)
	is.Equal(auditEntries(t, r, fmt.Sprint("pipeline ", id)), []string{"pipeline.cancel by ann"}) // one audit entry in total, not one per job
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.audit`), 1)
	free.Store(true)
	m, err := r.Admin("ann").RetryMany(t.Context(), runner.Filter{Pipeline: id, States: []job.State{job.Cancelled}}, false)
	is.NoErr(err)
	is.Equal([]int{m.Matched, m.Done}, []int{7, 7})
	inState(t, r, id, job.Succeeded)
	quiet(t, pool)
	p, err := r.Admin("").Pipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(p.Status, job.PipelineSucceeded)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job where pipeline_id = $1`, id), 10) // each join ran only once
}
