// Package poller decides when an engine polls; its [Source] knows what for. It merges wake-ups and never spins. All claims of waiting jobs are made
// in its sweeps, so that a lost wake-up costs one interval and no job. Each engine has one.
//
//	interval ± 10 % ───┐
//	a wake-up ─────────┼──▶ Sweep, again and again until dry ──▶ wait
//	a due moment ──────┘
package poller

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/wait"
)

// Source is what a poller looks at.
type Source interface {
	// Sweep looks once and reports whether another look at once may find more.
	Sweep(ctx context.Context) (more bool)
	// NextDue returns the earliest moment at which a look is worth it, or the zero time when none is known.
	NextDue() time.Time
}

// Poller sweeps a source at intervals, when woken, and when something becomes due. Make one with [New].
type Poller struct {
	source Source
	every  atomic.Int64
	wake   wait.Signal
	nudge  wait.Signal
}

// Spread is the share of the interval by which rounds vary, so that pods do not look in step.
const Spread = 0.1

// New returns a poller that sweeps source every interval, ± [Spread].
func New(source Source, every time.Duration) *Poller {
	p := &Poller{source: source, wake: wait.NewSignal(), nudge: wait.NewSignal()}
	p.every.Store(int64(every))
	return p
}

// SetEvery changes the interval, also that of the wait that is under way. Safe for concurrent use.
func (p *Poller) SetEvery(every time.Duration) {
	if p.every.Swap(int64(every)) != int64(every) {
		p.Nudge()
	}
}

// Wake asks for a sweep now, or for another one after the sweep that is under way. Any number of calls meanwhile are one.
// Safe for concurrent use.
func (p *Poller) Wake() {
	p.wake.Set()
}

// Nudge makes the poller ask its source again when something becomes due; it costs no sweep. Safe for concurrent use.
func (p *Poller) Nudge() {
	p.nudge.Set()
}

// Run sweeps until ctx ends: at once, then at every interval, wake-up and due moment. A sweep is not interrupted by the
// poller.
func (p *Poller) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lookAt, swept := time.Now(), time.Time{}
	every := p.every.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.nudge:
			if now := p.every.Load(); now != every && !swept.IsZero() {
				every, lookAt = now, swept.Add(p.interval())
			}
			// A moment that has come is not put off: nudges may come faster than the least wait.
			if wait := p.wait(lookAt); wait > least || time.Since(swept) < least {
				timer.Reset(wait)
				continue
			}
		case <-p.wake:
		case <-timer.C:
			if time.Now().Before(lookAt) && !p.due() {
				timer.Reset(p.wait(lookAt))
				continue
			}
		}
		for p.source.Sweep(ctx) {
			if ctx.Err() != nil {
				return
			}
		}
		swept, every = time.Now(), p.every.Load()
		lookAt = swept.Add(p.interval())
		timer.Reset(p.wait(lookAt))
	}
}

func (p *Poller) interval() time.Duration {
	return time.Duration(float64(p.every.Load()) * (1 + Spread*(2*rand.Float64()-1))) // #nosec G404 -- jitter
}

func (p *Poller) due() bool {
	due := p.source.NextDue()
	return !due.IsZero() && !time.Now().Before(due)
}

// least is the time between two looks at a due moment that the first one did not clear.
const least = 20 * time.Millisecond

// wait is the time to the next look: the interval's end or a due moment before it. A due moment that has passed and was
// not cleared by the sweep waits a little, so that a source that cannot look does not spin.
func (p *Poller) wait(lookAt time.Time) time.Duration {
	next := lookAt
	if due := p.source.NextDue(); !due.IsZero() && due.Before(next) {
		next = due
	}
	return max(time.Until(next), least)
}
