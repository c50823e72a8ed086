// Package watchdog ends the context of a handler that gives no sign of life. It hides how that costs a sign one atomic store. The engine has
// one [Watchdog] for each run.
package watchdog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Watchdog watches one handler that must give signs of life, with one timer, which is reset when it finds that there were some. Without a
// limit there is no timer. The zero value watches nothing.
type Watchdog struct {
	last   atomic.Int64 // the latest sign of life, since processStart; 0: the handler has not begun
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	after time.Duration
	over  bool
	timer *time.Timer
}

// processStart is what signs of life are counted from, on the monotonic clock.
var processStart = time.Now()

// Start watches from now on, and ends a handler's context once, with [job.ErrStale], when there was no sign of life for so long.
func (w *Watchdog) Start(cancel context.CancelCauseFunc, after time.Duration) {
	w.cancel = cancel
	w.Touch()
	w.Limit(after)
}

// Touch notes a sign of life.
func (w *Watchdog) Touch() { w.last.Store(int64(time.Since(processStart))) }

// Limit sets how long signs of life may be apart, from the latest on; 0 ends the watch.
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

// check ends the handler's context when the latest sign of life is too long ago, or sets the timer anew.
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
