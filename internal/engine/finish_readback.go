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
