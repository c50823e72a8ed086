//go:build long

package store_test

import (
	"errors"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Two retries of a pipeline run concurrently with a cancel. Regardless of the order, the job is retried at most once, each claim receives a new
// fence, and the next step is inserted once.
func TestConcurrentPipelineRetriesAndCancel(t *testing.T) {
	t.Parallel()
	for range races {
		w := newWorld(t)
		a, b := w.pod("a"), w.pod("b")
		id := w.failing(a)
		before := w.at(id)
		release := w.freeze(`select from trapeze.done where id = $1 for update`, id)
		retry := func() ([]int64, error) { return admin.RetryPipeline(w.ctx(), w.Store, id, nil, "me") }
		first, second := async(retry), async(retry)
		w.waiting(2)
		cancelled := async(func() (admin.Cancellation, error) {
			return admin.Cancel(w.ctx(), w.Store, id, 0, false, "me", ignoreLease)
		})
		release(true)
		_, err1 := first()
		_, err2 := second()
		w.is.True((err1 == nil) != (err2 == nil)) // exactly one of them succeeds
		w.is.True(err1 == nil || errors.Is(err1, job.ErrNotFailed))
		w.is.True(err2 == nil || errors.Is(err2, job.ErrNotFailed))
		_, err := cancelled()
		w.is.True(err == nil || errors.Is(err, job.ErrAlreadyTerminal))
		if w.at(id).State == job.Cancelled {
			_, err := admin.RetryPipeline(w.ctx(), w.Store, id, nil, "me")
			w.is.NoErr(err)
		}
		after := w.at(id)
		w.is.Equal(after.Fence, before.Fence) // a retry is not a claim
		// The pod dies with its claim, and a recovery and a retry run concurrently.
		w.promote(1)
		c := w.claimOne(a)
		w.is.Equal(c.Fence, before.Fence+1)
		w.lapse(a)
		x, y := async(func() (int, error) { n, _ := w.recover(b, 10); return n, nil }), async(retry)
		_, _ = x()
		_, err = y()
		w.is.True(errors.Is(err, job.ErrNotFailed))
		again := w.claimOne(b)
		w.is.Equal(again.Fence, before.Fence+2) // each claim increases the fence
		_, ok := w.end(a, endingWith(c, w.new(then(c))[0]))
		w.is.True(!ok) // the first owner is too late
		next := w.new(then(again))[0]
		_, ok = w.end(b, endingWith(again, next))
		w.is.True(ok)
		w.is.Equal(w.count(`select count(*) from trapeze.jobs where parent_id = $1`, id), 1)
	}
}
