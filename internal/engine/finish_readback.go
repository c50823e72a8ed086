package engine

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// readBack answers the members whose outcome it finds in the database, and returns those that must be sent again.
func (f *flusher) readBack(ctx context.Context, pod string, batch []*flush) (again []*flush) {
	claims, children := make([]job.Lease, len(batch)), make([]int64, len(batch))
	for i, w := range batch {
		claims[i] = w.run.Lease
		if w.ending.Next != nil {
			children[i] = w.ending.Next.ID
		}
	}
	found, err := f.Store.ClaimOutcomes(ctx, pod, claims, children, false)
	if err != nil {
		for _, w := range batch {
			if w.run.IsLost() {
				f.answer(w, store.Ended{}, job.ErrLeaseLost)
				continue
			}
			again = append(again, w)
		}
		return again
	}
	for _, w := range batch {
		switch at := found[w.ending.ID]; {
		case at.State != nil:
			f.answer(w, store.Ended{State: *at.State, ChildRunning: at.NextRunning, Found: true, Here: w.unknown && at.ByFinish}, nil)
		case at.Held:
			again = append(again, w)
		case at.Deleted:
			f.answer(w, store.Ended{}, fmt.Errorf("finish job %d: %w", w.ending.ID, job.ErrGone))
		default:
			f.answer(w, store.Ended{}, fmt.Errorf("finish job %d: %w", w.ending.ID, job.ErrLeaseLost))
		}
	}
	return again
}

// endCommitted returns a function that reads back whether a completion's transaction was committed. If the job has succeeded, the
// transaction was committed, because no other one can finish the job as succeeded.
func (l *claimTx) endCommitted(w *flush) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		child := int64(0)
		if w.next != nil {
			child = w.next.ID
		}
		found, err := l.Store.ClaimOutcomes(ctx, w.run.Lease.Pod, []job.Lease{w.run.Lease}, []int64{child}, false)
		c := found[w.run.Lease.JobID]
		w.ended = store.Ended{State: job.Succeeded, ChildRunning: c.NextRunning}
		return c.State != nil && *c.State == job.Succeeded, err
	}
}
