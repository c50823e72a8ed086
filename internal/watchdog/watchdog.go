// Package watchdog ends the context of a handler that gives no sign of life. A sign costs one atomic store. The engine has one [Watchdog]
// for each run.
package watchdog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Watchdog watches one handler that must give signs of life. It has one timer, which is reset if it fires after a recent sign. Without a
// limit there is no timer. The zero value watches nothing.
type Watchdog struct {
	last   atomic.Int64 // the latest sign of life, since processStart; 0: the handler has not begun
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	after time.Duration
	over  bool
	timer *time.Timer
}

// processStart is the reference of all signs of life, on the monotonic clock.
var processStart = time.Now()

// Start begins to watch. It ends a handler's context once, with [job.ErrStale], after the given time without a sign of life.
func (w *Watchdog) Start(cancel context.CancelCauseFunc, after time.Duration) {
	w.cancel = cancel
	w.Touch()
	w.Limit(after)
}

// Touch records a sign of life.
func (w *Watchdog) Touch() { w.last.Store(int64(time.Since(processStart))) }

// Limit sets the longest time between signs of life, from the latest one on; 0 ends the watch.
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

// check ends the handler's context if the latest sign of life is too long ago, or else resets the timer.
func (w *Watchdog) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.idle()
	switch {
	case w.over || w.after <= 0:
	case idle >= w.after:
		w.over = true
		w.cancel(job.ErrStale)
	default:
		w.timer.Reset(w.after - idle)
	}
}

// Stop ends the watch: the handler has returned.
func (w *Watchdog) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over = true; w.timer != nil {
		w.timer.Stop()
	}
}
