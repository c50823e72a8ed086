package poller

import (
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// dueTimes holds the times, by this process's clock, at which a poll may find work.
type dueTimes struct {
	mu    sync.Mutex
	due   bool      // parked jobs may be due already
	next  time.Time // when the first of the others becomes due, or zero if unknown
	lapse time.Time // earliest expiry of another pod's lease
	sweep bool      // a closed pod's jobs must be recovered
}

// ApplyBeat applies the times from a heartbeat's response.
func (d *dueTimes) ApplyBeat(b store.Beat) {
	local := func(t *time.Time) time.Time {
		if t == nil {
			return time.Time{}
		}
		return time.Now().Add(t.Sub(b.Now))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// The response may miss a job that this process parked while the heartbeat was in flight, so keep the earlier of the two times.
	if next := local(b.NextDue); d.next.IsZero() || !next.IsZero() && next.Before(d.next) {
		d.next = next
	}
	d.lapse, d.sweep = local(b.NextLapse), b.SweepIsDue
	if !d.lapse.IsZero() {
		d.lapse = d.lapse.Add(25 * time.Millisecond) // a poll before the lease expires would find nothing
	}
}

// parked records that this process parked a job for the given time.
func (d *dueTimes) parked(wait time.Duration) {
	at := time.Now().Add(wait)
	d.mu.Lock()
	defer d.mu.Unlock()
	if wait <= 0 {
		d.due = true
	} else if d.next.IsZero() || at.Before(d.next) {
		d.next = at
	}
}

// take reports whether promotion and recovery are due, and clears the times that have passed.
func (d *dueTimes) take() (promote, recover bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	passed := !d.next.IsZero() && !now.Before(d.next)
	promote = d.due || passed
	recover = d.sweep || !d.lapse.IsZero() && !now.Before(d.lapse)
	if d.due = false; passed {
		d.next = time.Time{}
	}
	if recover {
		d.lapse, d.sweep = time.Time{}, false
	}
	return promote, recover
}

// pollAgain requests another poll after a failed or incomplete one.
func (d *dueTimes) pollAgain(promote, recover bool, wait time.Duration) {
	if promote {
		d.parked(wait)
	}
	if recover {
		d.mu.Lock()
		d.lapse = time.Now().Add(wait)
		d.mu.Unlock()
	}
}

// nextDue returns the earliest of the times, or the zero time if none is known.
func (d *dueTimes) nextDue() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.next
	if !d.lapse.IsZero() && (next.IsZero() || d.lapse.Before(next)) {
		next = d.lapse
	}
	if d.sweep || d.due {
		next = time.Now()
	}
	return next
}
