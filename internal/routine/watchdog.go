package routine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Watchdog monitors a handler's activity. It has a single timer, which is set again if there was activity before it fired. Without a limit,
// there is no timer. The zero value monitors nothing.
type Watchdog struct {
	last   atomic.Int64 // latest activity, as the time since processStart; 0 before the handler starts
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	after time.Duration
	over  bool
	timer *time.Timer
}

// processStart is the reference point for all activity times, on the monotonic clock.
var processStart = time.Now()

// Start starts monitoring. Once there has been no activity for the given time, the watchdog cancels the handler's context with
// [job.ErrInactive].
func (w *Watchdog) Start(cancel context.CancelCauseFunc, after time.Duration) {
	w.cancel = cancel
	w.Touch()
	w.Limit(after)
}

// Touch records activity by the handler.
func (w *Watchdog) Touch() { w.last.Store(int64(time.Since(processStart))) }

// Limit sets the maximum time since the latest activity. A limit of 0 stops monitoring.
func (w *Watchdog) Limit(after time.Duration) {
	if after <= 0 && w.last.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.after = after; w.over || w.last.Load() == 0 {
		return
	}
	if w.timer != nil {
		w.timer.Stop()
	}
	if after > 0 {
		w.timer = time.AfterFunc(after-w.idle(), w.check)
	}
}

func (w *Watchdog) idle() time.Duration {
	return time.Since(processStart) - time.Duration(w.last.Load())
}

// check cancels the handler's context if the latest activity was too long ago. Otherwise it resets the timer.
func (w *Watchdog) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.idle()
	switch {
	case w.over || w.after <= 0:
	case idle >= w.after:
		w.over = true
		w.cancel(job.ErrInactive)
	default:
		w.timer.Reset(w.after - idle)
	}
}

// Stop stops monitoring, because the handler has returned.
func (w *Watchdog) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over = true; w.timer != nil {
		w.timer.Stop()
	}
}
