//go:build long

package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestCommandOnMovingJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(plain, plain, plain, plain)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var reads atomic.Int64
	for _, id := range ids {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := view.Job(context.Background(), w.Store, id); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				reads.Add(1)
			}
		})
	}
	moves := 0
	for began := time.Now(); time.Since(began) < 2*time.Second; moves++ {
		for _, c := range w.claims(podID, 4) {
			_, err := w.Snooze(w.ctx(), leaseOf(podID, c), 1, 0, store.Retry{Message: "again"})
			w.is.NoErr(err)
		}
		_, _, err := w.Promote(w.ctx(), 100)
		w.is.NoErr(err)
	}
	// Cancel the jobs concurrently, while they keep moving.
	var cancels sync.WaitGroup
	for _, id := range ids {
		cancels.Go(func() {
			if _, err := admin.Cancel(context.Background(), w.Store, id, 0, false, "ann", ignoreLease); err != nil {
				t.Errorf("cancel: %v", err)
			}
		})
	}
	for range 20 {
		for _, c := range w.claims(podID, 4) {
			if _, err := w.Snooze(w.ctx(), leaseOf(podID, c), 1, 0, store.Retry{Message: "again"}); err != nil {
				w.end(podID, ending(c))
			}
		}
		_, _, err := w.Promote(w.ctx(), 100)
		w.is.NoErr(err)
	}
	cancels.Wait()
	stop.Store(true)
	wg.Wait()
	for _, id := range ids {
		w.is.Equal(w.at(id).State, job.Cancelled)
	}
	w.is.True(reads.Load() > 0)
	w.t.Logf("%d rounds of moves, %d reads", moves, reads.Load())
}
