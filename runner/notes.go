package runner

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// notesEvery bounds what a handler that notes progress in a tight loop costs the database.
const notesEvery = 250 * time.Millisecond

// notes is a claim's progress on its way to the database: the latest note wins, one writer at a time.
type notes struct {
	write func(context.Context, job.Progress) error

	mu      sync.Mutex
	pending *job.Progress
	busy    bool
	idle    sync.WaitGroup
	last    time.Time
	closed  bool
	hurry   chan struct{} // ends a wait of drain; made with its goroutine
}

// set replaces the pending note and makes sure that someone writes it.
func (n *notes) set(p job.Progress) {
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

// drain writes notes until none is pending, at most one every notesEvery until hurry, which makes it write what is left
// at once: the end of a run, and with it the hand-off, must not wait for the pace.
func (n *notes) drain(hurry <-chan struct{}) {
	for {
		n.mu.Lock()
		wait := notesEvery - time.Since(n.last)
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
		// A note that cannot be written is only a note: the heartbeat decides about the lease.
		_ = n.write(context.Background(), *p)
	}
}

// close writes what is pending and waits for it, so that the final note is there before the job ends.
func (n *notes) close() {
	n.mu.Lock()
	if !n.closed && n.hurry != nil {
		close(n.hurry)
	}
	n.closed = true
	n.mu.Unlock()
	n.idle.Wait()
}
