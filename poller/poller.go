// Package poller decides when an engine polls; the polling itself is done by its [Source]. It merges wake-ups and never spins. Waiting jobs
// are claimed only in its sweeps, so a lost wake-up delays a job by at most one interval. Each engine has one poller.
//
//	interval ± 10 % ───┐
//	a wake-up ─────────┼──▶ Sweep, repeated while it finds more ──▶ wait
//	a due time ────────┘
package poller

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// Source is polled by a [Poller].
type Source interface {
	// Sweep polls once and reports whether polling again immediately may find more.
	Sweep(ctx context.Context) (more bool)
	// NextDue returns the earliest time at which a poll might find something, or the zero time if none is known.
	NextDue() time.Time
}

// Poller sweeps a source at intervals, when woken, and when something becomes due. Create one with [New].
type Poller struct {
	source Source
	every  time.Duration
	wake   routine.Signal
	nudge  routine.Signal
}

// spread is the fraction by which intervals vary, so that pods do not poll in lockstep.
const spread = 0.1

// New returns a poller that sweeps source every interval, ± 10 %.
func New(source Source, every time.Duration) *Poller {
	return &Poller{source: source, every: every, wake: routine.NewSignal(), nudge: routine.NewSignal()}
}

// Wake requests an immediate sweep, or another sweep after the one in progress. Calls made before that sweep starts are merged. Wake is
// safe for concurrent use.
func (p *Poller) Wake() {
	p.wake.Set()
}

// Nudge makes the poller call its source's NextDue again and sweep only if something is due. It is safe for concurrent use.
func (p *Poller) Nudge() {
	p.nudge.Set()
}

// Run sweeps until ctx is done: immediately, then after every interval, at every wake-up and at every due time. It never interrupts a
// sweep.
func (p *Poller) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lookAt, swept := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.nudge:
			// A due time that has been reached must not be postponed, even if nudges arrive more often than the minimum wait.
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
		swept = time.Now()
		lookAt = swept.Add(p.interval())
		timer.Reset(p.wait(lookAt))
	}
}

func (p *Poller) interval() time.Duration {
	return time.Duration(float64(p.every) * (1 + spread*(2*rand.Float64()-1))) // #nosec G404 -- jitter
}

func (p *Poller) due() bool {
	due := p.source.NextDue()
	return !due.IsZero() && !time.Now().Before(due)
}

// least is the minimum wait after a sweep that leaves something due.
const least = 20 * time.Millisecond

// wait returns the time until the end of the interval or the next due time, whichever is earlier. The result is never below the minimum, so
// a failing source that stays due does not cause a busy loop.
func (p *Poller) wait(lookAt time.Time) time.Duration {
	next := lookAt
	if due := p.source.NextDue(); !due.IsZero() && due.Before(next) {
		next = due
	}
	return max(time.Until(next), least)
}
