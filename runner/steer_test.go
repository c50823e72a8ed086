package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// auditEntries returns the audit entries for a target, oldest first, each as "action by actor".
func auditEntries(t *testing.T, r *runner.Runner, target string) (list []string) {
	t.Helper()
	rows, err := admin.AuditTrail(t.Context(), inside.Of(r).Store, admin.AuditFilter{Target: target})
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

func TestJobRetryWithNewArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"fails": unlessTrue})
	id := enqueue(t, r, rawArgs("fails", "false"), runner.Subject("s"))
	before := inState(t, r, id, job.Failed)
	again, err := r.Admin("ann").Retry(t.Context(), id, nil)
	is.NoErr(err)
	is.Equal(again, []int64{id})
	pgtest.Wait(t, "the job has failed again", func() bool { j := get(t, r, id); return j.State == job.Failed && j.Epoch == 2 })
	_, err = r.Admin("bob").Retry(t.Context(), id, json.RawMessage("true"))
	is.NoErr(err)
	after := inState(t, r, id, job.Succeeded)
	is.Equal(after.Epoch, before.Epoch+2)
	is.Equal(after.Fence, before.Fence+2) // each claim increments the fence
	is.Equal(after.Attempt, 1)            // attempts are counted from 1 again
	is.Equal(eventsOf(t, r, id), []string{"job.enqueued", "job.claimed", "job.failed", "job.operator_retry", "job.promoted", "job.claimed", "job.failed",
		"job.operator_retry", "job.promoted", "job.claimed", "job.succeeded"})
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", id)), []string{"job.retry by ann", "job.retry by bob"})

	_, err = r.Admin("ann").Retry(t.Context(), id, nil)
	is.True(errors.Is(err, job.ErrNotFailed)) // the job has already succeeded
	_, err = r.Admin("ann").Retry(t.Context(), 1<<40, nil)
	is.True(errors.Is(err, job.ErrNotFound))
	_, err = r.Admin("ann").Retry(t.Context(), id, make(chan int))
	is.True(errors.Is(err, job.ErrInvalidArgs))
	is.Equal(len(auditEntries(t, r, fmt.Sprint("job ", id))), 2) // refused commands are not recorded
}

func TestRetryWithHeldUniqueKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": succeed})
	unique := runner.Unique("u", runner.WhilePending)
	first := enqueue(t, r, rawArgs("k"), unique)
	_, err := r.Admin("ann").Cancel(t.Context(), first)
	is.NoErr(err)
	second := enqueue(t, r, rawArgs("k"), unique)
	is.True(second != first)
	_, err = r.Admin("ann").Retry(t.Context(), first, nil)
	is.True(errors.Is(err, job.ErrKeyHeld)) // another pending job holds the key
	_, err = r.Admin("ann").Cancel(t.Context(), second)
	is.NoErr(err)
	_, err = r.Admin("ann").Retry(t.Context(), first, nil)
	is.NoErr(err)
	is.Equal(enqueue(t, r, rawArgs("k"), unique), first) // the retried job holds the key again
	many, err := r.Admin("ann").RetryMany(t.Context(), runner.Filter{Kind: "k", States: []job.State{job.Cancelled}}, false)
	is.NoErr(err)
	is.Equal([]int{many.Matched, many.Done, many.Skipped}, []int{1, 0, 1})
}

// A retried branch is counted only once. Its new result counts while the fan-out is still waiting, and is ignored afterwards.
func TestRetriedBranchCount(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var good atomic.Bool
	var joins atomic.Int32
	r := start(t, pool, runner.Options{}, map[string]handler{
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("bad"), rawArgs("bad"), rawArgs("slow")).Join(rawArgs("joins")), nil
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
	parent := enqueue(t, r, rawArgs("fans"))
	var failed []int64
	pgtest.Wait(t, "two branches have failed", func() bool {
		page, err := view.Jobs(t.Context(), inside.Of(r).Store, job.Filter{Kind: "bad", States: []job.State{job.Failed}, Pipeline: parent})
		is.NoErr(err)
		failed = nil
		for _, j := range page.Jobs {
			failed = append(failed, j.ID)
		}
		return len(failed) == 2
	})
	counts := func() [3]int {
		w, err := inside.Of(r).Store.Waiting(t.Context(), parent)
		is.NoErr(err)
		return [3]int{w.Branches, w.Open, w.Failed}
	}
	is.Equal(counts(), [3]int{3, 1, 2})
	good.Store(true)
	_, err := r.Admin("ann").Retry(t.Context(), failed[0], nil)
	is.NoErr(err)
	inState(t, r, failed[0], job.Succeeded)
	is.Equal(counts(), [3]int{3, 1, 1}) // the new result counts
	open()
	inState(t, r, parent, job.Succeeded)
	pgtest.Wait(t, "the join has run", func() bool { return joins.Load() == 1 })

	_, err = r.Admin("ann").Retry(t.Context(), failed[1], nil)
	is.NoErr(err)
	inState(t, r, failed[1], job.Succeeded)
	is.Equal(counts(), [3]int{3, 0, 1}) // the fan-out had already finished
	is.Equal(get(t, r, parent).State, job.Succeeded)
	quiet(t, pool)
	is.Equal(joins.Load(), int32(1)) // the join ran only once
	off, err := inside.Of(r).Store.OffBalance(t.Context(), 10)
	is.NoErr(err)
	is.Equal(len(off), 0)
}
