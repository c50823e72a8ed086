package journal

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// heldEvents and heldBytes bound the memory of the events of a claim that wait.
const (
	heldEvents = 4096
	heldBytes  = 1 << 20
)

// Events are the events of a claim on their way to its history, in order:
//
//	no write under way, none within the interval ── the handler writes the event itself
//	otherwise ── held, and written together when the interval is over; when too many are held the handler waits
//	a transaction of the handler holds the job's row ── queued, and written in it: any other would wait for the row
type Events struct {
	w     *Writer
	claim Claim

	mu     sync.Mutex
	busy   bool // a goroutine writes, or waits for the end of the interval
	last   time.Time
	held   []store.Emission // only while busy
	bytes  int
	err    error            // of a late write, for the next Add
	news   chan struct{}    // closed when held was taken or busy has ended; nil: no goroutine waits for it
	hurry  chan struct{}    // closed: write the held events without waiting for the interval; made when first needed
	writer sync.WaitGroup   // writes the held events
	open   bool             // a transaction of the handler holds the job's row
	queued []store.Emission // while open
	closed bool
}

// Init prepares the events of a claim. Call it before the first Add.
func (s *Events) Init(w *Writer, c Claim) { s.w, s.claim = w, c }

// Add writes an event, or has it written soon. An error of a late write is returned by the next Add, whose event is not written then.
// After Close it returns [job.ErrLeaseLost].
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
		case len(s.held) == 0 || len(s.held) < heldEvents && s.bytes+size(e) <= heldBytes:
			s.hold(e)
			return nil
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// writeNow writes the handler's event at once. Events that other goroutines add meanwhile are held.
func (s *Events) writeNow(ctx context.Context, e store.Emission) error {
	s.busy = true
	s.mu.Unlock()
	err := s.w.write(ctx, s.claim, []store.Emission{e})
	s.mu.Lock()
	s.last = time.Now()
	if len(s.held) > 0 {
		s.writer.Go(s.drain)
	} else {
		s.rest()
	}
	return err
}

// hold keeps an event until the interval is over, and starts a writer unless there is one.
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

// drain writes the held events until there are none, at most once in each interval unless it is to hurry.
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
	s.rest()
}

// rest notes that no write is under way.
func (s *Events) rest() {
	s.busy, s.hurry = false, nil
	s.wake()
}

// wake wakes the goroutines that wait for room, or for the end of a write.
func (s *Events) wake() {
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// wait waits for the next wake.
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

// flush has the held events written at once, and waits until no write is under way.
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

// Begin opens a try of a transaction, after the events before it have been written. It drops the events of an earlier try, since this one
// emits them again.
func (s *Events) Begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.queued = true, nil
	return s.flush(ctx)
}

// take returns the queued events, and closes the queue when the transactions are over.
func (s *Events) take(over bool) []store.Emission {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.queued
	if over {
		s.open, s.queued = false, nil
	}
	return list
}

// WriteIn writes in a transaction the events that were added while it was open.
func (s *Events) WriteIn(ctx context.Context, tx store.DB) error {
	for part := range inParts(s.take(false)) {
		if err := s.w.store.EmitIn(ctx, tx, s.claim.ID(), part...); err != nil {
			return err
		}
	}
	return nil
}

// End ends the tries of a transaction. Events of one that was not committed are written now, since the handler did emit them.
func (s *Events) End(committed bool) {
	list := s.take(true)
	if committed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for part := range inParts(list) {
		if err := s.w.write(ctx, s.claim, part); err != nil {
			s.w.logLoss("could not write the events of a transaction that was not committed", s.claim, part, err)
			return
		}
	}
}

// Close writes the held events and waits for that, so that they are written before the job ends. It refuses later ones.
func (s *Events) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake() // there will be no room
	_ = s.flush(context.Background())
	s.mu.Unlock()
	s.writer.Wait()
}

// size returns roughly the memory of an event.
func size(e store.Emission) int { return 128 + len(e.Event) + len(e.Message) + len(e.Fields) }

// inParts splits a list into parts that are small enough for one statement.
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
