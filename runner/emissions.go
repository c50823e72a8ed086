package runner

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// emitEvery bounds what a handler that emits events in a tight loop costs the database.
	emitEvery = 250 * time.Millisecond
	// heldEvents and heldBytes bound what a job's events take of this process's memory while they wait.
	heldEvents = 4096
	heldBytes  = 1 << 20
)

// history is what emissions are written to.
type history interface {
	writeEvents(context.Context, []store.Emission) error // for a handler that waits
	writeHeld([]store.Emission) error                    // for nobody
}

// emissions are the events of a claim on their way into the history, in order:
//
//	nothing under way, none written a moment ago ── the handler writes the event itself
//	else ── held, and written together when the moment is over; when too many are held the handler waits
//	a transaction of the handler's holds the job's row ── queued, and written in it: any other would wait for it
type emissions struct {
	to history

	mu     sync.Mutex
	busy   bool // somebody writes, or waits for the moment to do so
	last   time.Time
	held   []store.Emission // only while busy
	bytes  int
	err    error            // of a write that nobody waited for
	news   chan struct{}    // closed when held was taken or busy has ended; nil: nobody waits for it
	hurry  chan struct{}    // closed: write what is held without waiting for the moment; made when first needed
	writer sync.WaitGroup   // writes what is held
	open   bool             // a transaction of the handler's holds the job's row
	queued []store.Emission // while open
	closed bool
}

// add takes an event in: it writes it, or has it written.
func (s *emissions) add(ctx context.Context, e store.Emission) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.open:
			s.queued = append(s.queued, e)
			return nil
		case s.closed:
			return job.ErrLeaseLost
		case s.err != nil:
			err := s.err
			s.err = nil
			return err
		case !s.busy && time.Since(s.last) >= emitEvery:
			return s.writeNow(ctx, e)
		case len(s.held) == 0 || len(s.held) < heldEvents && s.bytes+size(e) <= heldBytes:
			s.hold(e)
			return nil
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// writeNow has the handler write its event. Those of other goroutines that come meanwhile are held.
func (s *emissions) writeNow(ctx context.Context, e store.Emission) error {
	s.busy = true
	s.mu.Unlock()
	err := s.to.writeEvents(ctx, []store.Emission{e})
	s.mu.Lock()
	s.last = time.Now()
	if len(s.held) > 0 {
		s.writer.Go(s.drain)
	} else {
		s.rest()
	}
	return err
}

// hold keeps an event until the moment is over, and makes sure that someone writes it then.
func (s *emissions) hold(e store.Emission) {
	s.held, s.bytes = append(s.held, e), s.bytes+size(e)
	if s.hurry == nil {
		s.hurry = make(chan struct{})
	}
	if !s.busy {
		s.busy = true
		s.writer.Go(s.drain)
	}
}

// drain writes what is held until nothing is: at most once every emitEvery until it is to hurry.
func (s *emissions) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.held) > 0 {
		if wait := emitEvery - time.Since(s.last); wait > 0 {
			hurry := s.hurry
			s.mu.Unlock()
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-hurry:
				timer.Stop()
			}
			s.mu.Lock()
		}
		list := s.held
		s.held, s.bytes, s.last = nil, 0, time.Now()
		s.tell()
		s.mu.Unlock()
		err := s.to.writeHeld(list)
		s.mu.Lock()
		if err != nil {
			s.err = err
		}
	}
	s.rest()
}

// rest notes that nothing is under way.
func (s *emissions) rest() {
	s.busy, s.hurry = false, nil
	s.tell()
}

// tell wakes whoever waits for room, or for the end of a write.
func (s *emissions) tell() {
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// wait waits until something has changed.
func (s *emissions) wait(ctx context.Context) error {
	if s.news == nil {
		s.news = make(chan struct{})
	}
	news := s.news
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-news:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flush has what is held written at once, and waits until nothing is under way.
func (s *emissions) flush(ctx context.Context) error {
	for s.busy {
		if s.hurry == nil {
			s.hurry = make(chan struct{})
		}
		select {
		case <-s.hurry:
		default:
			close(s.hurry)
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// begin opens a try of a transaction: what an earlier try emitted is emitted again by this one. What was emitted before is
// written first.
func (s *emissions) begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.queued = true, nil
	return s.flush(ctx)
}

// take returns what is queued, and closes the queue when the transactions are over.
func (s *emissions) take(over bool) []store.Emission {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.queued
	if over {
		s.open, s.queued = false, nil
	}
	return list
}

// close writes what is held and waits for it, so that it is there before the job ends. What comes later is refused.
func (s *emissions) close() {
	s.mu.Lock()
	s.closed = true
	s.tell() // who waits for room waits in vain
	_ = s.flush(context.Background())
	s.mu.Unlock()
	s.writer.Wait()
}

// size is about what an event takes of memory.
func size(e store.Emission) int { return 128 + len(e.Event) + len(e.Message) + len(e.Fields) }

// inParts divides a list into parts of a size that one statement may have.
func inParts(list []store.Emission) iter.Seq[[]store.Emission] {
	return func(yield func([]store.Emission) bool) {
		for len(list) > 0 {
			n, bytes := 0, 0
			for n < len(list) && n < heldEvents && (n == 0 || bytes+size(list[n]) <= heldBytes) {
				bytes += size(list[n])
				n++
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}
