package runner

import (
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// StaleAfter ends the context of a run with [job.ErrStale] when its handler has for that long neither noted progress
// ([Job.Progress], [Job.Message]), nor emitted an event, nor committed a [Job.Tx]: that the process is alive does not make
// a hung job look alive. The run counts as an attempt, with the reason stale. 0 is off. Default: Options.StaleAfter.
func StaleAfter(d time.Duration) HandleOption { return func(k *kind) { k.staleAfter = d } }

// pulse is the watch over a handler that must give signs of life: one timer a run, which is set anew when it finds that
// there were some, so that a sign costs an atomic store. A nil pulse watches nothing.
type pulse struct {
	after time.Duration
	last  atomic.Int64 // the latest sign of life, since processStart
	over  atomic.Bool
	timer *time.Timer
}

// processStart is what signs of life are counted from, on the monotonic clock.
var processStart = time.Now()

// newPulse watches from now on, and calls stale once when there was no sign of life for so long.
func newPulse(after time.Duration, stale func()) *pulse {
	if after <= 0 {
		return nil
	}
	p := &pulse{after: after}
	p.beat()
	set := make(chan struct{})
	p.timer = time.AfterFunc(after, func() {
		<-set
		idle := time.Since(processStart) - time.Duration(p.last.Load())
		switch {
		case p.over.Load():
		case idle >= after:
			stale()
		default:
			p.timer.Reset(after - idle)
		}
	})
	close(set)
	return p
}

// beat notes a sign of life.
func (p *pulse) beat() {
	if p != nil {
		p.last.Store(int64(time.Since(processStart)))
	}
}

// end stops the watch: the handler has returned.
func (p *pulse) end() {
	if p != nil {
		p.over.Store(true)
		p.timer.Stop()
	}
}

// watchPulse watches over the signs of life of a run whose kind must give some.
func (one *run) watchPulse() {
	one.pulse = newPulse(one.kind.staleAfter, func() { one.cancel(job.ErrStale) })
}
