package store_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// fanOut makes a claim wait for branches, and returns the ids of its children.
func (w *world) fanOut(podID string, parent *store.Claimed, f store.FanOut, changes ...func(*store.NewJob)) []int64 {
	w.t.Helper()
	if len(changes) > 0 {
		f.Children = w.new(changes...)
	}
	ids := make([]int64, len(f.Children))
	for i := range f.Children {
		n := &f.Children[i]
		n.ParentID, n.PipelineID, n.Step = &parent.ID, parent.PipelineID, parent.Step+1
		n.Branch = store.Branch{Group: &parent.ID, No: ptr(int32(i + 1))}
		ids[i] = n.ID
	}
	f.Lease, f.Outcome = leaseOf(podID, parent), job.OK
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) error { _, err := w.FanOut(w.ctx(), tx, f); return err }))
	return ids
}

// branchEnding returns an ending for a claim whose job belongs to a branch.
func branchEnding(c *store.Claimed, state job.State) store.Ending {
	e := ending(c)
	if e.Branch = c.Branch; state == job.Failed {
		e.State, e.Outcome, e.Reason = state, job.Error, job.ReasonError
	}
	return e
}

// endOf returns the ending for a waiting job, based on the current state of its fan-out.
func (w *world) endOf(id int64) store.Ending {
	w.t.Helper()
	f, err := w.Waiting(w.ctx(), id)
	w.is.NoErr(err)
	e := store.Ending{ID: id, Fence: f.Fence, EventNo: f.EventNo, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Branch: f.Branch}
	if f.Failed > 0 {
		e.State, e.Outcome, e.Reason = job.Failed, job.Error, job.ReasonChildrenFailed
	}
	return e
}

// deferred creates a job that waits for the given number of parts and whose token is "token".
func (w *world) deferred(podID string, parts int, failFast bool) int64 {
	w.t.Helper()
	w.put(plain)
	c := w.claimOne(podID)
	_, err := w.Token(w.ctx(), leaseOf(podID, c), "token")
	w.is.NoErr(err)
	w.fanOut(podID, c, store.FanOut{Parts: parts, FailFast: failFast})
	return c.ID
}

func (w *world) offBalance() []int64 {
	w.t.Helper()
	ids, err := w.OffBalance(w.ctx(), 100)
	w.is.NoErr(err)
	return ids
}

// When two statements end branches of the same fan-out concurrently, one waits for the other, and both branches are counted.
func TestConcurrentBranchEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	w.fanOut(podID, parent, store.FanOut{}, plain, plain, plain)
	claims := w.claims(podID, 3)
	release := w.freeze(`select from trapeze.fan_outs where id = $1 for update`, parent.ID)
	first := async(func() (map[int64]store.Ended, error) {
		return w.Finish(w.ctx(), podID, []store.Ending{branchEnding(claims[0], job.Succeeded)})
	})
	w.waiting(1)
	second := async(func() (map[int64]store.Ended, error) {
		return w.Finish(w.ctx(), podID, []store.Ending{branchEnding(claims[1], job.Failed)})
	})
	third := async(func() (map[int64]store.Ended, error) {
		return w.Finish(w.ctx(), podID, []store.Ending{branchEnding(claims[2], job.Succeeded)})
	})
	w.waiting(3)
	release(true)
	due := 0
	for _, wait := range []func() (map[int64]store.Ended, error){first, second, third} {
		ended, err := wait()
		w.is.NoErr(err)
		for _, e := range ended {
			if e.OffBalance != nil {
				due++
			}
		}
	}
	w.is.Equal(due, 1) // only the end of the last branch reports that the fan-out must be settled
	w.is.Equal(w.count(`select open from trapeze.fan_outs where id = $1`, parent.ID), 0)
	w.is.Equal(w.count(`select failed from trapeze.fan_outs where id = $1`, parent.ID), 1)
	_, ok, err := w.EndWaiting(w.ctx(), podID, w.endOf(parent.ID))
	w.is.NoErr(err)
	w.is.True(ok)
	w.is.Equal(len(w.offBalance()), 0)
}

// A job that waits for parts has no branches to cancel. If it ends before its parts, its fan-out does not have to be settled.
func TestDeferredJobEndsBeforeParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	cancelled, stopped, aborted := w.deferred(podID, 3, false), w.deferred(podID, 3, false), w.deferred(podID, 3, false)
	fast := w.deferred(podID, 3, true)
	_, err := admin.Complete(w.ctx(), w.Store, cancelled, "token", "a", nil, "", "")
	w.is.NoErr(err)
	_, err = admin.Cancel(w.ctx(), w.Store, cancelled, 0, false, "me", ignoreLease)
	w.is.NoErr(err)
	_, err = admin.Cancel(w.ctx(), w.Store, stopped, 0, true, "me", ignoreLease)
	w.is.NoErr(err)
	_, err = admin.CancelMany(w.ctx(), w.Store, []int64{aborted}, job.ReasonPipelineCancelled, "me", nil)
	w.is.NoErr(err)
	due, err := admin.Complete(w.ctx(), w.Store, fast, "token", "a", nil, "no disk", "")
	w.is.NoErr(err)
	w.is.True(due)
	_, ok, err := w.EndWaiting(w.ctx(), podID, w.endOf(fast))
	w.is.NoErr(err)
	w.is.True(ok)
	w.is.Equal(len(w.offBalance()), 0) // heartbeats do not keep reporting the fan-outs as due
	for _, id := range []int64{cancelled, stopped, aborted, fast} {
		_, err = admin.Complete(w.ctx(), w.Store, id, "token", "z", nil, "", "")
		w.is.True(errors.Is(err, job.ErrAlreadyTerminal))
	}
}

// If a part is completed while its job is being cancelled, the part is either counted before the cancellation or rejected after it.
func TestPartCompletionDuringCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.deferred(podID, 2, false)
	release := w.freeze(`select from trapeze.fan_outs where id = $1 for update`, id)
	cancelled := async(func() (admin.Cancellation, error) {
		return admin.Cancel(w.ctx(), w.Store, id, 0, false, "me", ignoreLease)
	})
	w.waiting(1)
	completed := async(func() (bool, error) { return admin.Complete(w.ctx(), w.Store, id, "token", "a", nil, "", "") })
	w.waiting(2)
	release(true)
	_, err := cancelled()
	w.is.NoErr(err)
	_, err = completed()
	w.is.True(err == nil || errors.Is(err, job.ErrAlreadyTerminal))
	w.is.Equal(w.count(`select open from trapeze.fan_outs where id = $1`, id), 0)
	w.is.Equal(len(w.offBalance()), 0)
}

// Retrying a deferred job whose parts failed runs its handler again, because only the handler can restart the work.
func TestFailedDeferredJobRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.deferred(podID, 2, true)
	_, err := admin.Complete(w.ctx(), w.Store, id, "token", "good", json.RawMessage(`1`), "", "")
	w.is.NoErr(err)
	_, err = admin.Complete(w.ctx(), w.Store, id, "token", "bad", nil, "no disk", "")
	w.is.NoErr(err)
	_, ok, err := w.EndWaiting(w.ctx(), podID, w.endOf(id))
	w.is.NoErr(err)
	w.is.True(ok)
	again, err := admin.RetryPipeline(w.ctx(), w.Store, id, json.RawMessage(`{"n": 2}`), "me")
	w.is.NoErr(err)
	w.is.Equal(again, []int64{id})
	w.promote(1)
	c := w.claimOne(podID)
	w.is.Equal(string(c.Args), `{"n": 2}`)
	token, err := w.Token(w.ctx(), leaseOf(podID, c), "other")
	w.is.NoErr(err)
	w.is.Equal(token, "token")
	w.fanOut(podID, c, store.FanOut{Parts: 2})
	w.is.Equal(w.count(`select open from trapeze.fan_outs where id = $1`, id), 1) // parts that succeeded are still counted
	_, err = admin.Cancel(w.ctx(), w.Store, id, 0, false, "me", ignoreLease)
	w.is.NoErr(err)
	again, err = admin.RetryPipeline(w.ctx(), w.Store, id, nil, "me") // a cancelled job can also be retried
	w.is.NoErr(err)
	w.is.Equal(again, []int64{id})
}

// If a job fans out to children, parts that have already been completed are not counted as branches.
func TestAPartIsNoChild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	_, err := w.Token(w.ctx(), leaseOf(podID, parent), "token")
	w.is.NoErr(err)
	_, err = admin.Complete(w.ctx(), w.Store, parent.ID, "token", "a", nil, "", "")
	w.is.NoErr(err)
	w.fanOut(podID, parent, store.FanOut{}, plain, plain)
	w.is.Equal(w.count(`select open from trapeze.fan_outs where id = $1`, parent.ID), 2)
	_, err = admin.Complete(w.ctx(), w.Store, parent.ID, "token", "b", nil, "", "")
	w.is.True(errors.Is(err, job.ErrNotFound))
	_, drifts, err := upkeep.Reconcile(w.ctx(), w.Store, 0, 10)
	w.is.NoErr(err)
	w.is.Equal(len(drifts), 0)
}

// An ending that was computed before its job was retried is rejected.
func TestEndingBeforeRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	w.fanOut(podID, parent, store.FanOut{}, plain)
	w.end(podID, branchEnding(w.claimOne(podID), job.Failed))
	old := w.endOf(parent.ID)
	_, ok, err := w.EndWaiting(w.ctx(), podID, old)
	w.is.NoErr(err)
	w.is.True(ok)
	_, err = admin.RetryPipeline(w.ctx(), w.Store, parent.ID, nil, "me")
	w.is.NoErr(err)
	w.promote(1)
	w.end(podID, branchEnding(w.claimOne(podID), job.Succeeded))
	_, ok, err = w.EndWaiting(w.ctx(), podID, old)
	w.is.NoErr(err)
	w.is.True(!ok)
	w.is.Equal(w.at(parent.ID).State, job.Waiting)
	_, ok, err = w.EndWaiting(w.ctx(), podID, w.endOf(parent.ID))
	w.is.NoErr(err)
	w.is.True(ok)
	w.is.Equal(w.at(parent.ID).State, job.Succeeded)
}

// An ending computed before its job's priority or lane was changed is rejected, because its next step still carries the old values.
func TestEndingBeforePriorityChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	w.fanOut(podID, parent, store.FanOut{}, plain)
	w.end(podID, branchEnding(w.claimOne(podID), job.Succeeded))
	old := w.endOf(parent.ID)
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, parent.ID, 50, true, "ann"))
	_, ok, err := w.EndWaiting(w.ctx(), podID, old)
	w.is.NoErr(err)
	w.is.True(!ok)
	_, ok, err = w.EndWaiting(w.ctx(), podID, w.endOf(parent.ID))
	w.is.NoErr(err)
	w.is.True(ok)
	w.is.Equal(w.at(parent.ID).Priority, 50)
}

// A fan-out with deleted branches cannot be retried, because the missing branches would be mistaken for successful ones.
func TestFanOutRetryDeletedBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	w.fanOut(podID, parent, store.FanOut{FailFast: true}, plain, plain)
	e := branchEnding(w.claimOne(podID), job.Failed)
	w.end(podID, e)
	_, _, err := w.EndWaiting(w.ctx(), podID, w.endOf(parent.ID))
	w.is.NoErr(err)
	w.end(podID, branchEnding(w.claimOne(podID), job.Succeeded))
	w.is.Equal(len(w.offBalance()), 0)
	succeeded := w.count(`select id from trapeze.done where state = 'succeeded'`)
	w.age(int64(succeeded))
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	_, err = admin.RetryPipeline(w.ctx(), w.Store, parent.ID, nil, "me")
	w.is.True(errors.Is(err, job.ErrPruned))
	w.is.Equal(w.at(parent.ID).State, job.Failed)
}

// When retention determines which results a large fan-out still needs, it must not read all of the children once per child.
func TestRetentionWithLargeFanOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	old := w.claimOne(podID)
	w.end(podID, ending(old))
	w.age(old.ID)
	w.put(plain)
	parent := w.claimOne(podID)
	changes := make([]func(*store.NewJob), 3000)
	for i := range changes {
		changes[i] = plain
	}
	w.fanOut(podID, parent, store.FanOut{}, changes...)
	w.exec(`insert into trapeze.fan_outs (id, fence, branches, open, ended, outcome) select -g, 1, 0, 0, true, 'ok' from generate_series(1, 3000) g`)
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id, xid) select -g, 'k', 'default', '{}', -g, pg_current_xact_id() from generate_series(1, 20000) g`)
	began := time.Now()
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("deleting a day took %s", took)
	}
	w.exec(`delete from trapeze.fan_outs where id < 0`)
	w.exec(`delete from trapeze.jobs where id < 0`)
}
