package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// deeds lists what the audit says of a target, the oldest first, as action by actor.
func deeds(t *testing.T, r *runner.Runner, target string) (list []string) {
	t.Helper()
	rows, err := r.Store().AuditTrail(t.Context(), store.AuditFilter{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		list = append([]string{row.Action + " by " + row.Actor}, list...)
	}
	return list
}

// unlessTrue is a handler that fails unless its arguments are true.
func unlessTrue(_ context.Context, j *raw) (*runner.Outcome, error) {
	if string(j.Args.JSON) == "true" {
		return runner.Done("well"), nil
	}
	return nil, errors.New("no")
}

func TestAFailedJobIsTriedAgainWithOtherArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]does{"fails": unlessTrue})
	id := enqueue(t, r, of("fails", "false"), runner.Subject("s"))
	before := inState(t, r, id, job.Failed)
	again, err := r.Retry(t.Context(), id, "ann", nil)
	is.NoErr(err)
	is.Equal(again, []int64{id})
	pgtest.Wait(t, "it has failed again", func() bool { j := get(t, r, id); return j.State == job.Failed && j.Epoch == 2 })
	_, err = r.Retry(t.Context(), id, "bob", json.RawMessage("true"))
	is.NoErr(err)
	after := inState(t, r, id, job.Succeeded)
	is.Equal(after.Epoch, before.Epoch+2)
	is.Equal(after.Fence, before.Fence+2) // the fence goes on, one a claim
	is.Equal(after.Attempt, 1)            // the attempts begin anew
	is.Equal(told(t, r, id), []string{"job.enqueued", "job.claimed", "job.failed", "job.operator_retry", "job.claimed", "job.failed",
		"job.operator_retry", "job.claimed", "job.succeeded"})
	is.Equal(deeds(t, r, fmt.Sprint("job ", id)), []string{"job.retry by ann", "job.retry by bob"})

	_, err = r.Retry(t.Context(), id, "ann", nil)
	is.True(errors.Is(err, job.ErrNotFailed)) // it has succeeded
	_, err = r.Retry(t.Context(), 1<<40, "ann", nil)
	is.True(errors.Is(err, job.ErrNotFound))
	_, err = r.Retry(t.Context(), id, "ann", make(chan int))
	is.True(errors.Is(err, job.ErrInvalidArgs))
	is.Equal(len(deeds(t, r, fmt.Sprint("job ", id))), 2) // what was refused was not done
}

func TestARetriedJobRespectsItsUniqueKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := make1(t, pgtest.Pool(t), runner.Options{}, map[string]does{"k": nothing})
	unique := runner.Unique("u", runner.WhilePending)
	first := enqueue(t, r, of("k"), unique)
	_, err := r.Cancel(t.Context(), first, "ann")
	is.NoErr(err)
	second := enqueue(t, r, of("k"), unique)
	is.True(second != first)
	_, err = r.Retry(t.Context(), first, "ann", nil)
	is.True(errors.Is(err, job.ErrKeyHeld)) // one of a key waits, not two
	_, err = r.Cancel(t.Context(), second, "ann")
	is.NoErr(err)
	_, err = r.Retry(t.Context(), first, "ann", nil)
	is.NoErr(err)
	is.Equal(enqueue(t, r, of("k"), unique), first) // it holds its key again
	many, err := r.RetryMany(t.Context(), runner.Filter{Kind: "k", States: []job.State{job.Cancelled}}, false, "ann")
	is.NoErr(err)
	is.Equal([]int{many.Matched, many.Done, many.Passed}, []int{1, 0, 1})
}

// A branch that is tried again is counted once: while its fan-out waits it counts again, and when that is over not any more.
func TestABranchThatIsTriedAgainIsCountedOnce(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	var good atomic.Bool
	var joins atomic.Int32
	r := start(t, pool, runner.Options{}, map[string]does{
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(of("bad"), of("bad"), of("slow")).Join(of("joins")), nil
		},
		"bad": func(context.Context, *raw) (*runner.Outcome, error) {
			if good.Load() {
				return nil, nil
			}
			return nil, errors.New("no")
		},
		"slow":  func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"joins": func(context.Context, *raw) (*runner.Outcome, error) { joins.Add(1); return nil, nil },
	})
	parent := enqueue(t, r, of("fans"))
	var failed []int64
	pgtest.Wait(t, "two branches have failed", func() bool {
		page, err := r.Store().Jobs(t.Context(), store.Filter{Kind: "bad", States: []job.State{job.Failed}, Pipeline: parent})
		is.NoErr(err)
		failed = nil
		for _, j := range page.Jobs {
			failed = append(failed, j.ID)
		}
		return len(failed) == 2
	})
	counts := func() [3]int {
		w, err := r.Store().Waiting(t.Context(), parent)
		is.NoErr(err)
		return [3]int{w.Branches, w.Open, w.Failed}
	}
	is.Equal(counts(), [3]int{3, 1, 2})
	good.Store(true)
	_, err := r.Retry(t.Context(), failed[0], "ann", nil)
	is.NoErr(err)
	inState(t, r, failed[0], job.Succeeded)
	is.Equal(counts(), [3]int{3, 1, 1}) // it was waited for again
	open()
	inState(t, r, parent, job.Succeeded)
	pgtest.Wait(t, "the join ran", func() bool { return joins.Load() == 1 })

	_, err = r.Retry(t.Context(), failed[1], "ann", nil)
	is.NoErr(err)
	inState(t, r, failed[1], job.Succeeded)
	is.Equal(counts(), [3]int{3, 0, 1}) // its fan-out was over
	is.Equal(get(t, r, parent).State, job.Succeeded)
	quiet(t, pool)
	is.Equal(joins.Load(), int32(1)) // and what follows it came once
	off, err := r.Store().OffBalance(t.Context(), 10)
	is.NoErr(err)
	is.Equal(len(off), 0)
}

func TestANicedJobGoesByItsNewPriorityAndItsAge(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var order []int64
	r := make1(t, pool, runner.Options{Slots: 1}, map[string]does{
		"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			order = append(order, j.ID())
			return nil, nil
		}, // one slot: one at a time
	})
	var ids []int64
	for _, priority := range []int{10, 10, 10, 30, 0} {
		ids = append(ids, enqueue(t, r, of("k"), runner.Priority(priority)))
	}
	is.NoErr(r.Nice(t.Context(), ids[4], 30, false, "ann")) // after ids[3], its elder
	is.NoErr(r.Nice(t.Context(), ids[1], 50, false, "ann"))
	is.NoErr(r.Nice(t.Context(), ids[3], 10, false, "ann"))
	is.NoErr(r.Nice(t.Context(), ids[0], -100, false, "ann"))
	is.Equal(get(t, r, ids[1]).Priority, 50)
	is.Equal(told(t, r, ids[1]), []string{"job.enqueued", "job.niced"})
	is.Equal(deeds(t, r, fmt.Sprint("job ", ids[1])), []string{"job.nice by ann"})
	is.True(errors.Is(r.Nice(t.Context(), ids[0], 101, false, "ann"), job.ErrInvalid))
	is.True(errors.Is(r.Nice(t.Context(), ids[0], -101, false, "ann"), job.ErrInvalid))
	is.True(errors.Is(r.Nice(t.Context(), 1<<40, 0, false, "ann"), job.ErrNotFound))
	run(t, r)
	quiet(t, pool)
	is.Equal(order, []int64{ids[1], ids[4], ids[2], ids[3], ids[0]}) // ties: first ready, first out
	is.True(errors.Is(r.Nice(t.Context(), ids[0], 1, false, "ann"), job.ErrAlreadyTerminal))
}

func TestWhatWaitsForItsMomentOrItsBranchesIsNicedAndWhatRunsIsNot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := gate(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]does{
		"waits": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(of("waits")).Join(of("joins")), nil
		},
		"joins":  nothing,
		"nobody": nothing,
	})
	later := enqueue(t, r, of("nobody"), runner.Delay(time.Hour))
	is.NoErr(r.Nice(t.Context(), later, 77, false, "ann"))
	is.Equal(get(t, r, later).Priority, 77)
	asks := enqueue(t, r, of("nobody"), runner.NeedsApproval())
	is.NoErr(r.Nice(t.Context(), asks, 78, false, "ann"))
	is.Equal(get(t, r, asks).State, job.AwaitingApproval)
	running := begun(t, r, of("waits"))
	is.True(errors.Is(r.Nice(t.Context(), running, 5, false, "ann"), job.ErrNotQueued))

	parent := enqueue(t, r, runner.Chain(of("fans"), runner.Step(of("nobody"), runner.Priority(1))))
	inState(t, r, parent, job.Waiting)
	is.NoErr(r.Nice(t.Context(), parent, 60, true, "ann"))
	open()
	inState(t, r, parent, job.Succeeded)
	pgtest.Wait(t, "all steps have the priority", func() bool {
		spine, err := r.Store().Spine(t.Context(), parent)
		is.NoErr(err)
		for _, j := range spine {
			is.Equal(j.Priority, 60) // the join, and what the chain had planned after it
		}
		return len(spine) == 3
	})
}

func TestAChainIsNicedAsAWhole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := make1(t, pool, runner.Options{}, map[string]does{"k": nothing})
	const args = `{"a":  "<b>","n":[1, 2]}`
	chain := func() int64 {
		return enqueue(t, r, runner.Chain(of("k"), runner.Step(of("k", args), runner.Priority(-7)), of("k")), runner.Priority(3))
	}
	alone, whole := chain(), chain()
	is.NoErr(r.Nice(t.Context(), alone, 40, false, "ann"))
	is.NoErr(r.Nice(t.Context(), whole, 41, true, "ann"))
	run(t, r)
	quiet(t, pool)
	for id, want := range map[int64][]int{alone: {40, -7, -7}, whole: {41, 41, 41}} {
		spine, err := r.Store().Spine(t.Context(), id)
		is.NoErr(err)
		var got []int
		for _, j := range spine {
			got = append(got, j.Priority)
		}
		is.Equal(got, want)
	}
	a, err := r.Store().Spine(t.Context(), alone)
	is.NoErr(err)
	b, err := r.Store().Spine(t.Context(), whole)
	is.NoErr(err)
	is.Equal(string(b[1].Args), string(a[1].Args)) // a step keeps its arguments
}

func TestAJobThatHasEndedIsDeletedAndAPipelineAsAWhole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	r := start(t, pool, runner.Options{}, map[string]does{
		"k": nothing, "waits": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(of("k"), of("waits")).Join(of("k")), nil
		},
	})
	lone := enqueue(t, r, of("k"))
	inState(t, r, lone, job.Succeeded)
	n, err := r.Delete(t.Context(), lone, "ann")
	is.NoErr(err)
	is.Equal(n, 1)
	_, err = r.Get(t.Context(), lone)
	is.True(errors.Is(err, job.ErrNotFound))
	is.Equal(one[int](t, pool, `select count(*) from trapeze.done where id = $1`, lone), 0)
	is.Equal(deeds(t, r, fmt.Sprint("job ", lone)), []string{"job.delete by ann"})
	_, err = r.Delete(t.Context(), lone, "ann")
	is.True(errors.Is(err, job.ErrNotFound))

	parent := enqueue(t, r, of("fans"))
	pgtest.Wait(t, "a branch has ended", func() bool {
		return one[int](t, pool, `select count(*) from trapeze.job where pipeline_id = $1 and state = 'succeeded'`, parent) == 1
	})
	branch := one[int64](t, pool, `select id from trapeze.job where pipeline_id = $1 and state = 'succeeded'`, parent)
	_, err = r.Delete(t.Context(), parent, "ann")
	is.True(errors.Is(err, job.ErrNotTerminal))
	_, err = r.Delete(t.Context(), branch, "ann")
	is.True(errors.Is(err, job.ErrPartOfPipeline)) // its join will read it
	open()
	quiet(t, pool)
	_, err = r.Delete(t.Context(), branch, "ann")
	is.True(errors.Is(err, job.ErrPartOfPipeline)) // without it, the others' counts would be wrong
	n, err = r.Delete(t.Context(), parent, "ann")
	is.NoErr(err)
	is.Equal(n, 4)
	for _, table := range []string{"jobs", "done", "fan_outs", "pipelines", "job_progress"} {
		is.Equal(one[int](t, pool, `select count(*) from trapeze.`+table), 0) // nothing is left
	}
}

func TestManyJobsAreCancelledAndTriedAgainByAFilter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	r := start(t, pool, runner.Options{}, map[string]does{
		"k": nothing, "other": nothing, "waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
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
		list[i] = runner.Step(of("k"), runner.Delay(time.Hour))
	}
	_, err := r.EnqueueMany(t.Context(), list, runner.Delay(time.Hour))
	is.NoErr(err)
	running := begun(t, r, of("waits"), runner.Subject("x"))
	kept := enqueue(t, r, of("other"), runner.Delay(time.Hour))

	dry, err := r.CancelMany(t.Context(), runner.Filter{Kind: "k"}, true, "ann")
	is.NoErr(err)
	is.Equal([]int{dry.Matched, dry.Done, len(dry.Sample)}, []int{n, 0, 10})
	is.Equal(len(deeds(t, r, "jobs")), 0) // nothing was done
	m, err := r.CancelMany(t.Context(), runner.Filter{Kind: "k"}, false, "ann")
	is.NoErr(err)
	is.Equal([]int{m.Matched, m.Done, m.Passed}, []int{n, n, 0})
	m, err = r.CancelMany(t.Context(), runner.Filter{Subject: "x", States: []job.State{job.Running}}, false, "ann")
	is.NoErr(err)
	is.Equal(m.Done, 1)
	inState(t, r, running, job.Cancelled)
	open()
	is.Equal(get(t, r, kept).State, job.Pending)

	m, err = r.RetryMany(t.Context(), runner.Filter{Kind: "k"}, false, "bob")
	is.NoErr(err)
	is.Equal(m.Matched, 0) // none has failed, and the cancelled ones were not named
	m, err = r.RetryMany(t.Context(), runner.Filter{Kind: "k", States: []job.State{job.Cancelled}, Since: time.Now().Add(-time.Hour)}, false, "bob")
	is.NoErr(err)
	is.Equal([]int{m.Matched, m.Done, m.Passed}, []int{n, n, 0})
	pgtest.Wait(t, "all of them ran", func() bool {
		return one[int](t, pool, `select count(*) from trapeze.job where kind = 'k' and state = 'succeeded' and epoch = 2`) == n
	})
	is.Equal(deeds(t, r, "jobs"), []string{"jobs.cancel by ann", "jobs.cancel by ann", "jobs.retry by bob"}) // one a command

	for _, f := range []runner.Filter{{}, {States: []job.State{job.Succeeded}}} {
		_, err = r.CancelMany(t.Context(), f, true, "ann")
		is.True(errors.Is(err, job.ErrInvalid))
		_, err = r.RetryMany(t.Context(), f, true, "ann")
		is.True(errors.Is(err, job.ErrInvalid))
	}
}

// A whole pipeline that was aborted goes on with a filter that names its parents, its children, or both.
func TestAFilterMayNameAFanOutAndItsBranches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	var free atomic.Bool
	r := start(t, pool, runner.Options{}, map[string]does{
		"fans": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "2" {
				return runner.FanOut(of("fans", "1"), of("fans", "1")).Join(of("k")), nil
			}
			return runner.FanOut(of("waits"), of("waits")).Join(of("k")), nil
		},
		"k": nothing,
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
	id := enqueue(t, r, of("fans", "2"))
	pgtest.Wait(t, "four branches run", func() bool {
		return one[int](t, pool, `select count(*) from trapeze.live where state = 'running' and kind = 'waits'`) == 4
	})
	aborted, err := r.AbortPipeline(t.Context(), id, "ann")
	is.NoErr(err)
	is.Equal(len(aborted), 7)
	quiet(t, pool)
	is.Equal(deeds(t, r, fmt.Sprint("pipeline ", id)), []string{"pipeline.abort by ann"}) // and no row for each job
	is.Equal(one[int](t, pool, `select count(*) from trapeze.audit`), 1)
	free.Store(true)
	m, err := r.RetryMany(t.Context(), runner.Filter{Pipeline: id, States: []job.State{job.Cancelled}}, false, "ann")
	is.NoErr(err)
	is.Equal([]int{m.Matched, m.Done}, []int{7, 7})
	inState(t, r, id, job.Succeeded)
	quiet(t, pool)
	p, err := r.GetPipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(p.Status, job.PipelineSucceeded)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.job where pipeline_id = $1`, id), 10) // each join once
}

func TestCommandsAreWrittenDownWithTheirOrigin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]does{
		"waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		"defers": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			_, err := j.Token(ctx)
			return runner.Deferred(2), err
		},
	})
	ctx := job.WithOrigin(t.Context(), job.Origin{Source: "cli", Reason: "the provider is down"})
	running := begun(t, r, of("waits"))
	_, err := r.Cancel(ctx, running, "ann")
	is.NoErr(err)
	inState(t, r, running, job.Cancelled)
	_, err = r.Cancel(ctx, running, "ann")
	is.True(errors.Is(err, job.ErrAlreadyTerminal))
	is.Equal(deeds(t, r, fmt.Sprint("job ", running)), []string{"job.cancel by ann"})
	rows, err := r.Store().AuditTrail(t.Context(), store.AuditFilter{})
	is.NoErr(err)
	is.Equal([]string{rows[0].Source, rows[0].Reason}, []string{"cli", "the provider is down"})

	stopped := begun(t, r, of("waits"))
	_, err = r.Stop(ctx, stopped, "")
	is.NoErr(err)
	is.Equal(deeds(t, r, fmt.Sprint("job ", stopped)), []string{"job.stop by operator"})
	asks := enqueue(t, r, of("waits"), runner.NeedsApproval())
	is.NoErr(r.Approve(ctx, asks, "bob"))
	is.Equal(deeds(t, r, fmt.Sprint("job ", asks)), []string{"job.approve by bob"})
	defers := enqueue(t, r, of("defers"))
	inState(t, r, defers, job.Waiting)
	token, err := r.Store().Pool().Query(t.Context(), `select token from trapeze.deferrals where id = $1`, defers)
	is.NoErr(err)
	var secret string
	for token.Next() {
		is.NoErr(token.Scan(&secret))
	}
	is.NoErr(r.Complete(ctx, defers, secret, nil, runner.Part("a")))
	is.NoErr(r.Complete(ctx, defers, secret, nil, runner.Part("b"), runner.CompletedBy("bob")))
	is.Equal(deeds(t, r, fmt.Sprint("job ", defers)), []string{"job.complete by bob"}) // whoever has the token is no operator
}
