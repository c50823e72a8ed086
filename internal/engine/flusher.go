package engine

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
)

// flusher merges concurrent completions into a single statement and commit. It needs no timer: the first completion is written immediately,
// and those that arrive during the write are left for the next statement. As a result, a completion takes a single round trip on an idle
// pod, and batches fill up on a busy one.
type flusher struct {
	*shared
	write      func(ctx context.Context, batch []*flush) // writes a batch and answers every member
	atMost     int                                       // maximum number of completions in a batch
	afterFlush func(ends []*flush)                       // receives completions for which no caller is waiting
	workers    *WorkerPool[*Run]
	alive      context.Context // ends when the engine gives up writing
	die        context.CancelFunc
	some       routine.Signal // set when the queue may not be empty

	mu      sync.Mutex
	queue   []*flush
	writing int           // number of batches in flight
	landing chan struct{} // closed when the last batch in flight has been written; nil if there is none
	slow    int           // number of slow batches in flight
	closed  bool
}

const (
	Flushers    = 2
	flushAtMost = 500
	flushBeside = 32                   // with this many queued completions, a second batch starts during the first
	flushSlow   = 5 * time.Millisecond // a batch that takes longer is slow
)

var errStopped = errors.New("the runner has stopped")

func newFlusher(i *shared, workers *WorkerPool[*Run], afterFlush func([]*flush)) *flusher {
	f := &flusher{shared: i, atMost: flushAtMost, workers: workers, afterFlush: afterFlush, some: routine.NewSignal()}
	f.write = f.flush
	f.alive, f.die = context.WithCancel(context.Background())
	return f
}

// run writes batches until ctx ends, and then answers the remaining completions with an error.
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

// flushGather is the maximum time that completions wait for jobs whose handlers are about to be called.
const flushGather = 100 * time.Microsecond

// gather waits briefly for jobs whose handlers are about to be called. After a claim, the handlers are called one after another, and
// without the wait, the first completion would be written alone.
func (f *flusher) gather() {
	runtime.Gosched()
	for since := time.Now(); f.workers.Waiting() && time.Since(since) < flushGather; {
		runtime.Gosched()
	}
}

// put queues a completion or, after close, answers it with an error.
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
		f.some.Set()
	}
}

// wanted reports whether another batch should be written now. The caller must hold mu.
func (f *flusher) wanted() bool {
	return len(f.queue) > 0 && (f.writing == f.slow || len(f.queue) >= flushBeside) && f.writing < Flushers
}

// take removes a batch from the queue if one should be written now. If yet another batch should be written, take signals a worker.
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
		f.some.Set()
	}
	return batch
}

// watched writes a batch. Later completions do not wait for a batch that is slow, for example because its statement is waiting for a lock.
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
			f.some.Set()
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

// lands blocks until no batch is in flight, or flushSlow has passed.
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
	f.mu.Unlock()
	for _, w := range left {
		f.answer(w, store.Ended{}, errStopped)
	}
}

// writeEnd writes a completion and blocks until it is answered. It returns [job.ErrLeaseLost] if the claim is lost, errStopped if the
// flusher has stopped, or the database's error if the completion cannot be written.
func (f *flusher) writeEnd(run *Run, e store.Ending) (store.Ended, error) {
	w := &flush{run: run, ending: e, done: make(chan struct{})}
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
