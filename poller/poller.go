// Package poller decides when an engine polls; its [Source] polls. It merges wake-ups and never spins. All claims of waiting jobs are made
// in its sweeps. A lost wake-up therefore delays a job by one interval at most. Each engine has one poller.
//
//	interval ± 10 % ───┐
//	a wake-up ─────────┼──▶ Sweep, repeated while it finds more ──▶ wait
//	a due moment ──────┘
package poller

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/wait"
)

// Source is polled by a [Poller].
type Source interface {
	// Sweep polls once and reports whether another poll right away may find more.
	Sweep(ctx context.Context) (more bool)
	// NextDue returns the earliest moment at which a poll may find something, or the zero time if none is known.
	NextDue() time.Time
}

// Poller sweeps a source at intervals, when woken, and when something becomes due. Make one with [New].
type Poller struct {
	source Source
	every  atomic.Int64
	wake   wait.Signal
	nudge  wait.Signal
}

// Spread is the share of the interval by which sweeps vary, so that pods do not poll in step.
const Spread = 0.1

// New returns a poller that sweeps source every interval, ± [Spread].
func New(source Source, every time.Duration) *Poller {
	p := &Poller{source: source, wake: wait.NewSignal(), nudge: wait.NewSignal()}
	p.every.Store(int64(every))
	return p
}

// SetEvery changes the interval, including the current wait. Safe for concurrent use.
func (p *Poller) SetEvery(every time.Duration) {
	if p.every.Swap(int64(every)) != int64(every) {
		p.Nudge()
	}
}

// Wake requests a sweep now, or another one after the current sweep. Several calls before it are one. Safe for concurrent use.
func (p *Poller) Wake() {
	p.wake.Set()
}

// Nudge makes the poller call NextDue of its source again, without a sweep. Safe for concurrent use.
func (p *Poller) Nudge() {
	p.nudge.Set()
}

// Run sweeps until ctx ends: at once, then at every interval, wake-up and due moment. The poller does not interrupt a sweep.
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
			// Do not postpone a due moment that has come: nudges may arrive more often than the minimum wait.
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

// least is the minimum wait between two sweeps for a due moment that the first one did not clear.
const least = 20 * time.Millisecond

// wait returns the time until the next sweep: until the interval ends or an earlier due moment. If a sweep did not clear a due moment that
// has passed, the wait is at least the minimum, so that a failing source does not spin.
func (p *Poller) wait(lookAt time.Time) time.Duration {
	next := lookAt
	if due := p.source.NextDue(); !due.IsZero() && due.Before(next) {
		next = due
	}
	return max(time.Until(next), least)
}
