package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
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

// flush is a queued completion. It is answered exactly once.
type flush struct {
	run     *Run
	ending  store.Ending
	next    *store.NewJob
	writes  work.Writes // the handler's writes, committed together with the completion
	ended   store.Ended
	err     error
	done    chan struct{} // closed once the answer is set; if nil, no caller is waiting, and flusher.afterFlush is called instead
	tries   int           // how often the row was locked by another transaction
	unknown bool          // the reply to a statement with this completion was lost
}

// weight returns a completion's approximate size on the wire, in bytes.
func (w *flush) weight() int {
	bytes := 500 + len(w.ending.Result) + len(w.ending.Error) + w.writes.Size()
	if w.ending.Next != nil {
		bytes += len(w.ending.Next.Args) + len(w.ending.Next.Planned)
	}
	return bytes
}

// flush writes a batch and answers every member. Usually all members belong to the same pod; they differ only if the lease was lost in the
// meantime.
func (f *flusher) flush(ctx context.Context, batch []*flush) {
	byPod := map[string][]*flush{}
	for _, w := range batch {
		byPod[w.run.Lease.Pod] = append(byPod[w.run.Lease.Pod], w)
	}
	for pod, members := range byPod {
		f.send(ctx, pod, members)
	}
}

// send sends a batch until the outcome of every member is known. It keeps halving a rejected batch, so that an invalid member does not
// affect the others. After a lost reply, it reads the outcome back and never assumes one.
func (f *flusher) send(ctx context.Context, pod string, batch []*flush) {
	for backoff := routine.NewBackoff(); len(batch) > 0; {
		_ = failpoint.Hit(failpoint.FlushSend)
		endings := make([]store.Ending, len(batch))
		for i, w := range batch {
			endings[i] = w.ending
		}
		ended, err := f.Store.Finish(ctx, pod, endings)
		if err == nil {
			var written, missing []*flush
			for _, w := range batch {
				end, ok := ended[w.ending.ID]
				switch {
				case !ok:
					missing = append(missing, w)
				case w.done == nil:
					w.ended = end
					written = append(written, w)
				default:
					f.answer(w, end, nil)
				}
			}
			f.afterFlush(written)
			if len(missing) > 0 {
				f.missed(ctx, pod, missing)
			}
			return
		}
		_ = f.DBError(err)
		if store.Unknown(err) {
			for _, w := range batch {
				w.unknown = true
			}
		}
		switch {
		case store.Refused(err) && len(batch) > 1:
			half := len(batch) / 2
			var first sync.WaitGroup
			first.Go(func() { f.send(ctx, pod, batch[:half]) })
			f.send(ctx, pod, batch[half:])
			first.Wait()
			return
		case store.Refused(err) || !store.Transient(err) && !store.Unknown(err):
			for _, w := range batch {
				f.answer(w, store.Ended{}, err)
			}
			return
		}
		if !backoff.Wait(ctx) {
			for _, w := range batch {
				f.answer(w, store.Ended{}, err)
			}
			return
		}
		batch = f.readBack(ctx, pod, batch)
	}
}

// heldFor is the typical time for which another pod's claim locks the row of a job that is being finished. The claim has an older snapshot,
// and locks the row before noticing that the job is running. A completion is resent up to resends times before its state is read. The first
// such read on a connection costs several milliseconds for planning.
const (
	heldFor = 2 * time.Millisecond
	resends = 3
)

// missed handles completions that the statement skipped. Most likely, another transaction has briefly locked their rows, so they are sent
// again before their state is read. Otherwise, the claim is lost, or an earlier attempt whose reply was lost has finished the job.
func (f *flusher) missed(ctx context.Context, pod string, batch []*flush) {
	var asked []*flush
	for _, w := range batch {
		if w.tries < resends {
			f.putBack([]*flush{w})
		} else {
			asked = append(asked, w)
		}
	}
	if len(asked) > 0 {
		f.putBack(f.readBack(ctx, pod, asked))
	}
}

// putBack requeues completions whose rows are locked, but only after a short delay, so that they do not hold up others.
func (f *flusher) putBack(batch []*flush) {
	for _, w := range batch {
		wait := min(heldFor<<w.tries, time.Second)
		w.tries = min(w.tries+1, 10)
		go func() {
			routine.Sleep(f.alive, wait)
			f.put(w)
		}()
	}
}

func (f *flusher) answer(w *flush, ended store.Ended, err error) {
	w.ended, w.err = ended, err
	if w.done != nil {
		close(w.done)
		return
	}
	f.afterFlush([]*flush{w})
}

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
			f.answer(w, store.Ended{State: *at.State, ChildRunning: at.NextRunning, EndedBefore: true, EndedHere: w.unknown && at.ByFinish}, nil)
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

// endCommitted returns a function that reads back whether a completion's transaction was committed. If the job has succeeded, the
// transaction was committed, because no other one can finish the job as succeeded.
func (l *claimTx) endCommitted(w *flush) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		child := int64(0)
		if w.next != nil {
			child = w.next.ID
		}
		found, err := l.Store.ClaimOutcomes(ctx, w.run.Lease.Pod, []job.Lease{w.run.Lease}, []int64{child}, false)
		c := found[w.run.Lease.JobID]
		w.ended = store.Ended{State: job.Succeeded, ChildRunning: c.NextRunning, ReplyLost: true}
		return c.State != nil && *c.State == job.Succeeded, err
	}
}
