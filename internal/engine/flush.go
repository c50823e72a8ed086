package engine

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
)

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
