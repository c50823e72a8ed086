package journal

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Progress writes a claim's progress to the database. Only the latest value counts, and only one goroutine writes at a time.
type Progress struct {
	w     *Writer
	claim Claim

	mu      sync.Mutex
	pending *job.Progress
	busy    bool
	idle    sync.WaitGroup
	last    time.Time
	closed  bool
	hurry   chan struct{} // closed to cut drain's pause short; created when drain's goroutine starts
}

// Init sets the writer and the claim. Call it before the first Set.
func (n *Progress) Init(w *Writer, c Claim) { n.w, n.claim = w, c }

// Set replaces the pending value and schedules it to be written soon. It never waits for the database. After Close, it has no effect.
func (n *Progress) Set(p job.Progress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	if n.pending != nil {
		if p.Done == nil {
			p.Done, p.Total = n.pending.Done, n.pending.Total
		}
		if p.Message == nil {
			p.Message = n.pending.Message
		}
	}
	n.pending = &p
	if !n.busy {
		n.busy, n.hurry = true, make(chan struct{})
		hurry := n.hurry
		n.idle.Go(func() { n.drain(hurry) })
	}
}

// drain writes values until none is pending, at most one per interval. Once hurry is closed, it writes the pending value immediately,
// because progress must not delay the end of a run or a hand-off.
func (n *Progress) drain(hurry <-chan struct{}) {
	for {
		n.mu.Lock()
		wait := interval - time.Since(n.last)
		n.mu.Unlock()
		if wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-hurry:
				timer.Stop()
			}
		}
		n.mu.Lock()
		p := n.pending
		n.pending, n.last = nil, time.Now()
		if p == nil {
			n.busy = false
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		_ = n.claim.Check(n.w.store.Progress(context.Background(), n.claim.ID(), *p)) // losing a progress value does no harm
	}
}

// Close writes the pending value and waits until it is stored, which ensures that the last progress precedes the job's end.
func (n *Progress) Close() {
	n.mu.Lock()
	if !n.closed && n.hurry != nil {
		close(n.hurry)
	}
	n.closed = true
	n.mu.Unlock()
	n.idle.Wait()
}
