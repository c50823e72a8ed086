package identity

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// A single goroutine reads the jobs for all callers that wait for jobs to finish, and runs only while there are callers.

const (
	// minPause and maxPause limit the pause between two polls of all awaited jobs. Each pause is twice as long as the previous one.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
	// pauseFactor is the minimum pause after a poll, as a multiple of the poll's duration. It keeps polling to about a twentieth of the
	// time.
	pauseFactor = 20
)

// waiter represents a caller that is waiting for a job to finish.
type waiter struct {
	id      int64
	verdict chan verdict // buffered, holds one value
}

type verdict struct {
	job job.JobRow
	err error
}

// Waiters holds the callers that are waiting for jobs to finish. A single goroutine polls for all of them, and runs only while there are
// callers.
type Waiters struct {
	store   *store.Store
	log     *slog.Logger
	dbError func(error) error // records a database error, and returns it
	count   atomic.Int64

	mu    sync.Mutex
	all   map[int64]map[*waiter]bool
	fresh map[int64]bool // jobs to read now, because a caller has begun to wait for them or a claim has ended here
	news  routine.Signal // set when entries are added to fresh
	watch *watch         // nil if no caller is waiting
}

// watch is the goroutine that polls.
type watch struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// NewWaiters returns a Waiters that reads from s. The dbError function records a database error and returns it. It is not called for errors after
// polling has stopped.
func NewWaiters(s *store.Store, log *slog.Logger, dbError func(error) error) *Waiters {
	return &Waiters{store: s, log: log, dbError: dbError, all: map[int64]map[*waiter]bool{}, fresh: map[int64]bool{}, news: routine.NewSignal()}
}

// Wait blocks until a job has finished or ctx is cancelled.
func (w *Waiters) Wait(ctx context.Context, id int64) (job.JobRow, error) {
	if err := context.Cause(ctx); err != nil {
		return job.JobRow{}, fmt.Errorf("wait for job %d: %w", id, err)
	}
	waiter := w.add(id)
	defer w.remove(waiter)
	select {
	case v := <-waiter.verdict:
		return v.job, v.err
	case <-ctx.Done():
		return job.JobRow{}, fmt.Errorf("wait for job %d: %w", id, context.Cause(ctx))
	}
}

// add registers a caller that is waiting for a job.
func (w *Waiters) add(id int64) *waiter {
	one := &waiter{id: id, verdict: make(chan verdict, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[id] == nil {
		w.all[id] = map[*waiter]bool{}
	}
	w.all[id][one] = true
	w.count.Add(1)
	w.renew(id)
	if w.watch == nil {
		ctx, cancel := context.WithCancel(context.Background())
		now := &watch{cancel: cancel, ended: make(chan struct{})}
		w.watch = now
		go func() {
			defer close(now.ended)
			defer cancel()
			w.run(ctx, now)
		}()
	}
	return one
}

// remove removes a waiter. If it was the last, remove stops the polling goroutine and waits for it.
func (w *Waiters) remove(one *waiter) {
	w.mu.Lock()
	if w.all[one.id][one] {
		w.drop(one)
	}
	var last *watch
	if len(w.all) == 0 {
		last, w.watch = w.watch, nil
	}
	w.mu.Unlock()
	if last != nil {
		last.cancel()
		<-last.ended
	}
}

func (w *Waiters) drop(one *waiter) {
	delete(w.all[one.id], one)
	if len(w.all[one.id]) == 0 {
		delete(w.all, one.id)
		delete(w.fresh, one.id)
	}
	w.count.Add(-1)
}

// Seen records that a claim of the job has ended in this process. If a caller is waiting for the job, it is read immediately.
func (w *Waiters) Seen(id int64) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[id] != nil {
		w.renew(id)
	}
}

func (w *Waiters) renew(id int64) {
	w.fresh[id] = true
	w.news.Set()
}

// run polls until no caller is waiting. It reads fresh jobs immediately, and all awaited jobs at increasing intervals.
func (w *Waiters) run(ctx context.Context, self *watch) {
	pause := minPause
	for full := time.Now().Add(pause); ; {
		timer := time.NewTimer(time.Until(full))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			ids, ok := w.ids(self, false)
			if !ok {
				return
			}
			began := time.Now()
			if w.poll(ctx, ids) > 0 {
				pause = minPause
			} else {
				pause = min(2*pause, maxPause)
			}
			full = time.Now().Add(max(pause, pauseFactor*time.Since(began)))
		case <-w.news:
			timer.Stop()
			ids, ok := w.ids(self, true)
			if !ok {
				return
			}
			w.poll(ctx, ids)
			pause = minPause
			if soon := time.Now().Add(pause); soon.Before(full) {
				full = soon
			}
		}
	}
}

// ids returns the jobs to poll. The ok result is false if the goroutine must stop, because no caller is waiting or another goroutine is
// polling.
func (w *Waiters) ids(self *watch, fresh bool) (ids []int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch != self || len(w.all) == 0 {
		if w.watch == self {
			w.watch = nil
		}
		return nil, false
	}
	if fresh {
		for id := range w.fresh {
			ids = append(ids, id)
		}
	} else {
		for id := range w.all {
			ids = append(ids, id)
		}
	}
	clear(w.fresh)
	return ids, true
}

// poll reads jobs and notifies the callers that are waiting for them. It returns the number of notified callers.
func (w *Waiters) poll(ctx context.Context, ids []int64) (delivered int) {
	if len(ids) == 0 {
		return 0
	}
	over, gone, err := view.Over(ctx, w.store, ids)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return 0
	case store.Transient(w.dbError(err)) || store.Unknown(err):
		w.log.DebugContext(ctx, "could not read the awaited jobs", telemetry.Jobs, len(ids), telemetry.Err, err)
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		for _, id := range ids {
			delivered += w.deliver(id, verdict{err: fmt.Errorf("wait for job %d: %w", id, err)})
		}
		return delivered
	}
	for _, j := range over {
		delivered += w.deliver(j.ID, verdict{job: j})
	}
	for _, id := range gone {
		delivered += w.deliver(id, verdict{err: fmt.Errorf("wait for job %d: %w", id, job.ErrNotFound)})
	}
	return delivered
}

func (w *Waiters) deliver(id int64, v verdict) (delivered int) {
	for waiter := range w.all[id] {
		waiter.verdict <- v
		w.drop(waiter)
		delivered++
	}
	return delivered
}
