package poller

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// Source is polled by a [Timer].
type Source interface {
	// Poll polls once and reports whether polling again immediately may find more.
	Poll(ctx context.Context) (more bool)
	// NextDue returns the earliest time at which a poll might find something, or the zero time if none is known.
	NextDue() time.Time
}

// Timer decides when its source is polled: at intervals, when woken, and when something becomes due. It merges wake-ups and never spins.
// Create one with [NewTimer].
type Timer struct {
	source Source
	every  time.Duration
	wake   routine.Signal
	nudge  routine.Signal
}

// spread is the fraction by which intervals vary, so that pods do not poll in lockstep.
const spread = 0.1

// NewTimer returns a timer that polls source every interval, ± 10 %.
func NewTimer(source Source, every time.Duration) *Timer {
	return &Timer{source: source, every: every, wake: routine.NewSignal(), nudge: routine.NewSignal()}
}

// Wake requests an immediate poll, or another poll after the one in progress. Calls made before that poll starts are merged. Wake is
// safe for concurrent use.
func (t *Timer) Wake() {
	t.wake.Set()
}

// Nudge makes the timer call its source's NextDue again and poll only if something is due. It is safe for concurrent use.
func (t *Timer) Nudge() {
	t.nudge.Set()
}

// Run polls until ctx is done: immediately, then after every interval, at every wake-up and at every due time. It never interrupts a
// poll.
func (t *Timer) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lookAt, swept := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.nudge:
			// A due time that has been reached must not be postponed, even if nudges arrive more often than the minimum wait.
			if wait := t.wait(lookAt); wait > least || time.Since(swept) < least {
				timer.Reset(wait)
				continue
			}
		case <-t.wake:
		case <-timer.C:
			if time.Now().Before(lookAt) && !t.due() {
				timer.Reset(t.wait(lookAt))
				continue
			}
		}
		for t.source.Poll(ctx) {
			if ctx.Err() != nil {
				return
			}
		}
		swept = time.Now()
		lookAt = swept.Add(t.interval())
		timer.Reset(t.wait(lookAt))
	}
}

func (t *Timer) interval() time.Duration {
	return time.Duration(float64(t.every) * (1 + spread*(2*rand.Float64()-1))) // #nosec G404 -- jitter
}

func (t *Timer) due() bool {
	due := t.source.NextDue()
	return !due.IsZero() && !time.Now().Before(due)
}

// least is the minimum wait after a poll that leaves something due.
const least = 20 * time.Millisecond

// wait returns the time until the end of the interval or the next due time, whichever is earlier. The result is never below the minimum, so
// a failing source that stays due does not cause a busy loop.
func (t *Timer) wait(lookAt time.Time) time.Duration {
	next := lookAt
	if due := t.source.NextDue(); !due.IsZero() && due.Before(next) {
		next = due
	}
	return max(time.Until(next), least)
}
