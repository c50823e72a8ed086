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
		n.busy = true
		n.idle.Go(n.drain)
	}
}

// drain writes notes until none is pending, at most one every notesEvery.
func (n *notes) drain() {
	for {
		n.mu.Lock()
		wait := notesEvery - time.Since(n.last)
		closed := n.closed
		n.mu.Unlock()
		if wait > 0 && !closed {
			time.Sleep(min(wait, 20*time.Millisecond)) // short, so that the end of the run is not delayed
			continue
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
	n.closed = true
	n.mu.Unlock()
	n.idle.Wait()
}
