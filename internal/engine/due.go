package engine

import (
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// dueTimes are the moments at which a sweep is worth it, on this process's clock.
type dueTimes struct {
	mu    sync.Mutex
	next  time.Time // when the first parked job becomes due; zero: none is known
	lapse time.Time // earliest end of a peer's lease
	sweep bool      // a closed pod's jobs are to be looked for
}

// ApplyBeat takes the moments of a heartbeat, which knew all of them a moment ago.
func (d *dueTimes) ApplyBeat(b store.Beat) {
	local := func(t *time.Time) time.Time {
		if t == nil {
			return time.Time{}
		}
		return time.Now().Add(t.Sub(b.Now))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// A job that was parked here while the heartbeat was under way is not in its answer: the earlier moment counts.
	if next := local(b.NextDue); d.next.IsZero() || !next.IsZero() && next.Before(d.next) {
		d.next = next
	}
	d.lapse, d.sweep = local(b.NextLapse), b.SweepIsDue
	if !d.lapse.IsZero() {
		d.lapse = d.lapse.Add(25 * time.Millisecond) // a look before the lease has ended would find nothing
	}
}

// parked notes that a job was parked here for a while.
func (d *dueTimes) parked(wait time.Duration) {
	at := time.Now().Add(wait)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next.IsZero() || at.Before(d.next) {
		d.next = at
	}
}

// take returns the moments that are due, and clears them.
func (d *dueTimes) take() (promote, recover bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	promote = !d.next.IsZero() && !now.Before(d.next)
	recover = d.sweep || !d.lapse.IsZero() && !now.Before(d.lapse)
	if promote {
		d.next = time.Time{}
	}
	if recover {
		d.lapse, d.sweep = time.Time{}, false
	}
	return promote, recover
}

// sweepAgain asks for another sweep after one that failed or was cut short.
func (d *dueTimes) sweepAgain(promote, recover bool, wait time.Duration) {
	if promote {
		d.parked(wait)
	}
	if recover {
		d.mu.Lock()
		d.lapse = time.Now().Add(wait)
		d.mu.Unlock()
	}
}

// NextDue is the sweeper's part of [poller.Source].
func (d *dueTimes) NextDue() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.next
	if !d.lapse.IsZero() && (next.IsZero() || d.lapse.Before(next)) {
		next = d.lapse
	}
	if d.sweep {
		next = time.Now()
	}
	return next
}
