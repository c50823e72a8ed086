package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// staleAfter is for how long the handler of a run may give no sign of life; 0 is as long as it likes.
func (r *Engine) staleAfter(one *Run) time.Duration {
	if one.kind.StaleAfter != nil {
		return *one.kind.StaleAfter
	}
	if after, set := r.Lanes.StaleAfter(one.Claimed.Lane); set {
		return after
	}
	return r.Opts.StaleAfter
}

// pulse is the watch over a handler that must give signs of life: one timer a run, which is set anew when it finds that
// there were some, so that a sign costs an atomic store. One that watches nothing has no timer.
type pulse struct {
	last   atomic.Int64 // the latest sign of life, since processStart; 0: the handler has not begun
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	after time.Duration
	over  bool
	timer *time.Timer
}

// processStart is what signs of life are counted from, on the monotonic clock.
var processStart = time.Now()

// begin watches from now on, and ends a handler's context once, with [job.ErrStale], when there was no sign of life for so long.
func (p *pulse) begin(cancel context.CancelCauseFunc, after time.Duration) {
	p.cancel = cancel
	p.beat()
	p.watch(after)
}

// beat notes a sign of life.
func (p *pulse) beat() { p.last.Store(int64(time.Since(processStart))) }

// watch makes the watch one over signs of life that are at most so long apart, from the latest on; 0 ends it.
func (p *pulse) watch(after time.Duration) {
	if after <= 0 && p.last.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.after = after; p.over || p.last.Load() == 0 {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	if after > 0 {
		p.timer = time.AfterFunc(after-p.idle(), p.look)
	}
}

func (p *pulse) idle() time.Duration { return time.Since(processStart) - time.Duration(p.last.Load()) }

// look ends the handler's context when the latest sign of life is too long ago, or sets the timer anew.
func (p *pulse) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle()
	switch {
	case p.over || p.after <= 0:
	case idle >= p.after:
		p.over = true
		p.cancel(job.ErrStale)
	default:
		p.timer.Reset(p.after - idle)
	}
}

// end stops the watch: the handler has returned.
func (p *pulse) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over = true; p.timer != nil {
		p.timer.Stop()
	}
}

// watchPulse watches over the signs of life of a run from now on, if its kind or its lane asks for some.
func (one *Run) watchPulse() {
	after := one.r.staleAfter(one)
	one.pulse.begin(one.cancel, after)
	if now := one.r.staleAfter(one); now != after { // its lane says otherwise since, and may have said it before the watch began
		one.pulse.watch(now)
	}
}
