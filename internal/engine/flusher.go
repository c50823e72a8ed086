package engine

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// flusher merges ends of claims that arrive at the same time into one statement and one commit. There is no timer. The first
// end is written at once, and the ends that arrive meanwhile by the next statement. An idle pod thus pays one round trip, and
// a busy one fills its batches.
type flusher struct {
	*Identity
	write   func(ctx context.Context, batch []*flush) // writes a batch and answers every member
	atMost  int                                       // maximum number of ends in a batch
	written func(ends []*flush)                       // called with ends for which no caller waits
	soon    func() bool                               // reports whether handlers are about to be called
	alive   context.Context                           // ends when the engine gives up writing
	die     context.CancelFunc
	some    wait.Signal // set if the queue may not be empty

	mu      sync.Mutex
	queue   []*flush
	writing int           // number of batches in flight
	landing chan struct{} // closed when none is in flight; nil: none is
	slow    int           // those of them that are slow
	held    map[*flush]*time.Timer
	closed  bool
}

const (
	Flushers    = 2
	flushAtMost = 500
	flushBeside = 32                   // this many ends are worth a second batch during the first one; fewer wait for it
	flushParts  = 8                    // concurrent parts of a rejected batch
	flushSlow   = 5 * time.Millisecond // after this time a batch is slow
)

var errStopped = errors.New("the runner has stopped")

func newFlusher(i *Identity, written func([]*flush), soon func() bool) *flusher {
	f := &flusher{Identity: i, atMost: flushAtMost, written: written, soon: soon, some: wait.NewSignal()}
	f.write = f.flush
	f.alive, f.die = context.WithCancel(context.Background())
	return f
}

// run flushes until ctx ends, and then answers the remaining ends with an error.
func (f *flusher) run(ctx context.Context) {
	defer f.close()
	var workers sync.WaitGroup
	for range Flushers {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-f.some:
					f.gather()
					for batch := f.take(); len(batch) > 0; batch = f.take() {
						f.watched(func() { f.write(ctx, batch) })
					}
				}
			}
		})
	}
	workers.Wait()
}

// flushGather is how long ends wait for claims whose handlers are about to be called.
const flushGather = 100 * time.Microsecond

// gather waits for handlers that are about to return. After a claim, its handlers are called one after the other. Without the
// wait, the end of the first would be written alone.
func (f *flusher) gather() {
	runtime.Gosched()
	for since := time.Now(); f.soon() && time.Since(since) < flushGather; {
		runtime.Gosched()
	}
}

// put queues an end. After close it answers with an error.
func (f *flusher) put(w *flush) {
	f.mu.Lock()
	closed := f.closed
	if !closed {
		f.queue = append(f.queue, w)
	}
	wanted := f.wanted()
	f.mu.Unlock()
	if closed {
		f.answer(w, store.Ended{}, errStopped)
		return
	}
	if wanted {
		f.hint()
	}
}

// wanted reports whether another batch has to be written now. The caller holds mu.
func (f *flusher) wanted() bool {
	return len(f.queue) > 0 && (f.writing == f.slow || len(f.queue) >= flushBeside) && f.writing < Flushers
}

func (f *flusher) hint() {
	f.some.Set()
}

// take takes a batch from the queue if one is wanted, and signals if another one is.
func (f *flusher) take() []*flush {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.wanted() {
		return nil
	}
	batch := f.queue
	f.queue = nil
	if n := f.atMost; len(batch) > n {
		batch, f.queue = batch[:n:n], slices.Clone(batch[n:])
	}
	if f.writing++; f.landing == nil {
		f.landing = make(chan struct{})
	}
	if f.wanted() {
		f.hint()
	}
	return batch
}

// watched writes a batch. If it is slow, for example because its statement waits for a lock or its members are sent in parts,
// later ends do not wait for it.
func (f *flusher) watched(write func()) {
	over, slow := false, false
	timer := time.AfterFunc(flushSlow, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if over {
			return
		}
		slow = true
		f.slow++
		if f.wanted() {
			f.hint()
		}
	})
	write()
	timer.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	over = true
	if f.writing--; f.writing == 0 {
		close(f.landing)
		f.landing = nil
	}
	if slow {
		f.slow--
	}
}

// lands blocks until no batch is in flight, or one is slow.
func (f *flusher) lands() {
	f.mu.Lock()
	landing := f.landing
	f.mu.Unlock()
	if landing == nil {
		return
	}
	long := time.NewTimer(flushSlow)
	defer long.Stop()
	select {
	case <-landing:
	case <-long.C:
	}
}

func (f *flusher) close() {
	f.die()
	f.mu.Lock()
	f.closed = true
	left := f.queue
	f.queue = nil
	for w, timer := range f.held {
		if timer.Stop() {
			left = append(left, w)
		}
	}
	f.held = nil
	f.mu.Unlock()
	for _, w := range left {
		f.answer(w, store.Ended{}, errStopped)
	}
}

// writeEnd writes one end and blocks until the answer: [job.ErrLeaseLost], an error for which [store.Refused] is true, or the
// end of the engine.
func (f *flusher) writeEnd(one *Run, e store.Ending) (store.Ended, error) {
	w := &flush{one: one, ending: e, done: make(chan struct{})}
	f.put(w)
	select {
	case <-w.done:
		return w.ended, w.err
	case <-f.alive.Done():
		select {
		case <-w.done:
			return w.ended, w.err
		default:
			return store.Ended{}, errStopped
		}
	}
}
