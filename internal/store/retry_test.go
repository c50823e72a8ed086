package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// failing creates a job that has failed, and returns its id.
func (w *world) failing(podID string, changes ...func(*store.NewJob)) int64 {
	w.t.Helper()
	w.put(append(changes, plain)[0])
	c := w.claimOne(podID)
	e := ending(c)
	e.State, e.Outcome, e.Reason = job.Failed, job.Error, job.ReasonError
	w.end(podID, e)
	return c.ID
}

// If a job is retried while retention is processing the job's batch, everything that the job needs is kept.
func TestRetentionOfRetriedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ShortWait(time.Minute)
	podID := w.pod("a")
	other, id := w.failing(podID), w.failing(podID)
	w.age(other, id)
	release := w.freeze(`select from trapeze.jobs where id = $1 for update`, min(other, id))
	id = max(other, id)
	forgotten := async(func() (int, error) { return upkeep.Forget(w.ctx(), w.Store, "failed", 30*time.Hour, unpaced) })
	w.waiting(1)
	_, err := admin.RetryPipeline(w.ctx(), w.Store, id, nil, "me")
	w.is.NoErr(err)
	release(true)
	_, err = forgotten()
	w.is.NoErr(err)
	w.is.Equal(w.at(id).State, job.Pending)
	w.promote(1)
	_, ok := w.end(podID, ending(w.claimOne(podID)))
	w.is.True(ok)
	w.is.Equal(w.at(id).State, job.Succeeded)
	w.exec(`delete from trapeze.jobs where id = $1`, id) // the job's first epoch is no longer in the history
	w.exec(`delete from trapeze.done where id = $1`, id)
}

// A job that has already been deleted cannot be retried.
func TestRetryOfForgottenJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.failing(podID)
	w.age(id)
	release := w.freeze(`with j as (delete from trapeze.jobs where id = $1) delete from trapeze.done where id = $1`, id)
	retried := async(func() ([]int64, error) { return admin.RetryPipeline(w.ctx(), w.Store, id, nil, "me") })
	w.waiting(1)
	release(true)
	_, err := retried()
	w.is.True(errors.Is(err, job.ErrNotFound))
	w.is.Equal(w.count(`select count(*) from trapeze.live`), 0)
}

// An abort that runs concurrently with a retry of the same fan-out ends either all of the retried jobs or none of them.
func TestAbortDuringFanOutRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	children := w.fanOut(podID, parent, store.FanOut{}, plain, plain)
	for _, c := range w.claims(podID, 2) {
		w.end(podID, branchEnding(c, job.Failed))
	}
	_, ok, err := w.EndWaiting(w.ctx(), podID, w.endOf(parent.ID))
	w.is.NoErr(err)
	w.is.True(ok)
	release := w.freeze(`select from trapeze.fan_outs where id = $1 for update`, parent.ID)
	retried := async(func() ([]int64, error) { return admin.RetryPipeline(w.ctx(), w.Store, parent.ID, nil, "me") })
	w.waiting(1)
	open, err := admin.OpenOfPipeline(w.ctx(), w.Store, parent.ID, 10)
	w.is.NoErr(err)
	w.is.Equal(len(open), 0) // no job is open until the retry is committed
	release(true)
	again, err := retried()
	w.is.NoErr(err)
	slices.Sort(again)
	w.is.Equal(again, children)
	open, err = admin.OpenOfPipeline(w.ctx(), w.Store, parent.ID, 10)
	w.is.NoErr(err)
	w.is.Equal(len(open), 3)
	abort := func() (admin.CancelledMany, error) {
		return admin.CancelMany(w.ctx(), w.Store, open, job.ReasonPipelineCancelled, "me", nil)
	}
	x, y := async(abort), async(abort)
	_, err1 := x()
	_, err2 := y()
	w.is.NoErr(errors.Join(err1, err2))
	for _, id := range open {
		w.is.Equal(w.at(id).State, job.Cancelled)
	}
	w.is.Equal(w.count(`select open from trapeze.fan_outs where id = $1`, parent.ID), 0)
	w.is.Equal(len(w.offBalance()), 0)
}

// Even if the retention is zero, retention deletes nothing that a waiting job or an open join still needs. Once both have finished, no rows
// are left behind.
func TestRetentionDuringReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	forget := func() {
		t.Helper()
		for _, state := range []string{"succeeded", "failed", "cancelled"} {
			_, err := upkeep.Forget(w.ctx(), w.Store, state, 30*time.Hour, unpaced)
			w.is.NoErr(err)
		}
		_, err := upkeep.PrunePipelines(w.ctx(), w.Store, 0, unpaced)
		w.is.NoErr(err)
	}
	w.put(plain)
	parent := w.claimOne(podID)
	w.fanOut(podID, parent, store.FanOut{Result: []byte(`7`), Pipeline: ptr("")}, plain, plain, plain)
	claims := w.claims(podID, 3)
	w.end(podID, branchEnding(claims[0], job.Succeeded))
	w.end(podID, branchEnding(claims[1], job.Failed))
	w.age(claims[0].ID, claims[1].ID)
	branches := func() int {
		t.Helper()
		list, err := view.Branches(w.ctx(), w.Store, parent.ID, parent.ID, 0, 10)
		w.is.NoErr(err)
		return len(list)
	}
	forget()
	w.is.Equal(branches(), 3) // a waiting job keeps its branches
	w.end(podID, branchEnding(claims[2], job.Succeeded))
	w.age(claims[2].ID)
	e := w.endOf(parent.ID)
	e.State, e.Outcome, e.Result = job.Succeeded, job.Warning, []byte(`7`)
	join := w.new(then(parent))[0]
	join.Impaired = true
	e.Next = &join
	_, ok, err := w.EndWaiting(w.ctx(), podID, e)
	w.is.NoErr(err)
	w.is.True(ok)
	w.age(parent.ID)
	forget()
	w.is.Equal(branches(), 3) // the join still reads the branches
	w.is.Equal(string(w.at(parent.ID).Result), `7`)
	c := &store.Claimed{ID: join.ID, Fence: 1, Definition: store.Definition{PipelineID: parent.ID}}
	if w.at(join.ID).State == job.Pending {
		c = w.claimOne(podID)
	}
	_, ok = w.end(podID, ending(c))
	w.is.True(ok)

	// A deferred job keeps its parts while it is waiting, but not after it has finished.
	waits, over := w.deferred(podID, 2, false), w.deferred(podID, 1, false)
	for _, id := range []int64{waits, over} {
		_, err := admin.Complete(w.ctx(), w.Store, id, "token", "a", nil, "", "")
		w.is.NoErr(err)
	}
	_, ok, err = w.EndWaiting(w.ctx(), podID, w.endOf(over))
	w.is.NoErr(err)
	w.is.True(ok)
	w.age(join.ID, over)
	forget()
	parts, err := admin.Parts(w.ctx(), w.Store, waits, "", 10)
	w.is.NoErr(err)
	w.is.Equal(len(parts), 1)
	_, err = admin.Complete(w.ctx(), w.Store, waits, "token", "b", nil, "", "")
	w.is.NoErr(err)
	_, ok, err = w.EndWaiting(w.ctx(), podID, w.endOf(waits))
	w.is.NoErr(err)
	w.is.True(ok)
	w.age(waits)
	forget()
	forget() // the first call still keeps rows that other jobs needed
	for _, table := range []string{"jobs", "done", "fan_outs", "deferrals", "parts", "pipelines", "job_progress", "subjects", "unique_keys"} {
		w.is.Equal(w.count(`select count(*) from trapeze.`+table), 0) // no rows are left
	}
}

// When a fan-out is retried, its finished branches are kept for its join, even if retention has already selected them for deletion.
func TestRetentionOfRetriedBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ShortWait(time.Minute)
	podID := w.pod("a")
	w.put(plain)
	other := w.claimOne(podID)
	w.end(podID, ending(other))
	w.put(plain)
	parent := w.claimOne(podID)
	w.fanOut(podID, parent, store.FanOut{FailFast: true}, plain, plain)
	claims := w.claims(podID, 2)
	w.end(podID, branchEnding(claims[0], job.Succeeded))
	w.end(podID, branchEnding(claims[1], job.Failed))
	_, ok, err := w.EndWaiting(w.ctx(), podID, w.endOf(parent.ID))
	w.is.NoErr(err)
	w.is.True(ok)
	w.age(other.ID, claims[0].ID)
	release := w.freeze(`select from trapeze.jobs where id = $1 for update`, other.ID)
	forgotten := async(func() (int, error) { return upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced) })
	w.waiting(1)
	_, err = admin.RetryPipeline(w.ctx(), w.Store, parent.ID, nil, "me")
	w.is.NoErr(err)
	release(true)
	_, err = forgotten()
	w.is.NoErr(err)
	list, err := view.Branches(w.ctx(), w.Store, parent.ID, parent.ID, 0, 10)
	w.is.NoErr(err)
	w.is.Equal(len(list), 2)
	w.exec(`delete from trapeze.done where id = $1`, other.ID) // the branch itself was deleted, even though its day is kept for the fan-out
}
