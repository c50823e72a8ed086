package journal

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// maxHeldEvents and maxHeldBytes limit the memory used by a claim's buffered events.
const (
	maxHeldEvents = 4096
	maxHeldBytes  = 1 << 20
)

// Events writes a claim's events to the job's history, in order:
//
//	no write in progress, none within the interval ── the handler's goroutine writes the event itself
//	otherwise ── held, and written together after the interval; when too many are held, the handler waits
//	one of the handler's transactions has locked the job's row ── queued, and written in that transaction, because any other would wait for it
type Events struct {
	w     *Writer
	claim Claim

	mu     sync.Mutex
	busy   bool // a goroutine is writing or waiting for the interval to end
	last   time.Time
	held   []store.Emission // used only while busy
	bytes  int
	err    error            // error of a late write; returned by the next Add
	news   chan struct{}    // closed when the held events have been taken or the writer is done; nil if no goroutine is waiting for this
	hurry  chan struct{}    // closed to write the held events without waiting for the interval to end; created on first use
	writer sync.WaitGroup   // writes the held events
	open   bool             // one of the handler's transactions has locked the job's row
	queued []store.Emission // used while open
	inTx   int              // number of queued events that the transaction has written
	closed bool
}

// Init sets the writer and the claim. Call it before the first Add.
func (s *Events) Init(w *Writer, c Claim) { s.w, s.claim = w, c }

// Add writes an event, or schedules it to be written soon. If a late write has failed, the next Add returns that write's error instead of
// writing its own event. After Close, Add returns [job.ErrLeaseLost].
func (s *Events) Add(ctx context.Context, e store.Emission) error {
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
		case !s.busy && time.Since(s.last) >= interval:
			return s.writeNow(ctx, e)
		case len(s.held) == 0 || len(s.held) < maxHeldEvents && s.bytes+size(e) <= maxHeldBytes:
			s.hold(e)
			return nil
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// writeNow writes an event immediately. Events that other goroutines add in the meantime are held.
func (s *Events) writeNow(ctx context.Context, e store.Emission) error {
	s.busy = true
	s.mu.Unlock()
	err := s.w.write(ctx, s.claim, []store.Emission{e})
	s.mu.Lock()
	s.last = time.Now()
	if len(s.held) > 0 {
		s.writer.Go(s.drain)
	} else {
		s.writeEnded()
	}
	return err
}

// hold keeps an event until the interval has passed, and starts a goroutine to write it unless one is running.
func (s *Events) hold(e store.Emission) {
	s.held, s.bytes = append(s.held, e), s.bytes+size(e)
	if s.hurry == nil {
		s.hurry = make(chan struct{})
	}
	if !s.busy {
		s.busy = true
		s.writer.Go(s.drain)
	}
}

// drain writes the held events, at most once per interval, until none are left. Once hurry is closed, it no longer waits for the interval.
func (s *Events) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.held) > 0 {
		if wait := interval - time.Since(s.last); wait > 0 {
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
		s.wake()
		s.mu.Unlock()
		err := s.w.writeLate(s.claim, list)
		s.mu.Lock()
		if err != nil {
			s.err = err
		}
	}
	s.writeEnded()
}

// writeEnded records that no write is in progress.
func (s *Events) writeEnded() {
	s.busy, s.hurry = false, nil
	s.wake()
}

// wake wakes the goroutines that are waiting for room or for the end of a write.
func (s *Events) wake() {
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// wait blocks until the next call to wake, or until ctx ends.
func (s *Events) wait(ctx context.Context) error {
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

// flush writes the held events immediately, and waits until no write is in progress.
func (s *Events) flush(ctx context.Context) error {
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

// Begin starts an attempt to run a transaction, after all earlier events have been written. It drops the previous attempt's events, because
// the new attempt emits them again.
func (s *Events) Begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.queued, s.inTx = true, nil, 0
	return s.flush(ctx)
}

// WriteIn writes the events that were added during a transaction, as part of that transaction.
func (s *Events) WriteIn(ctx context.Context, tx store.DB) error {
	s.mu.Lock()
	list := s.queued
	s.inTx = len(list)
	s.mu.Unlock()
	for part := range inParts(list) {
		if err := s.w.store.EmitIn(ctx, tx, s.claim.ID(), part...); err != nil {
			return err
		}
	}
	return nil
}

// End is called after the last attempt to run a transaction. It writes the events that were emitted but not committed: all of the
// transaction's events if it was not committed, and otherwise those that other goroutines have added since [Events.WriteIn].
func (s *Events) End(committed bool) {
	s.mu.Lock()
	list := s.queued
	if committed {
		list = list[s.inTx:]
	}
	s.open, s.queued = false, nil
	s.mu.Unlock()
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for part := range inParts(list) {
		if err := s.w.write(ctx, s.claim, part); err != nil {
			s.w.logLoss("could not write the events that were emitted during a transaction", s.claim, part, err)
			return
		}
	}
}

// Close writes the held events and waits until they are stored, which ensures that they precede the job's end. Later events are rejected.
func (s *Events) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake() // goroutines waiting for room must give up
	_ = s.flush(context.Background())
	s.mu.Unlock()
	s.writer.Wait()
}

// size returns the approximate memory used by an event.
func size(e store.Emission) int { return 128 + len(e.Event) + len(e.Message) + len(e.Fields) }

// inParts splits a list into parts that each fit into a statement.
func inParts(list []store.Emission) iter.Seq[[]store.Emission] {
	return func(yield func([]store.Emission) bool) {
		for len(list) > 0 {
			n, bytes := 0, 0
			for n < len(list) && n < maxHeldEvents && (n == 0 || bytes+size(list[n]) <= maxHeldBytes) {
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
