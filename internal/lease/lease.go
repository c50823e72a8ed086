// Package lease tracks the lease of a pod: its boot id, until when the pod may treat its jobs as its own, and whether it may declare
// others dead. It hides the clocks: the pod's for its own trust, the database's for the leases of others. It does no I/O; heartbeats
// report to it.
package lease

import (
	"cmp"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/wait"
)

// Lease is an engine's lease in the table of pods: its boot id, and until when it may trust that other pods leave its jobs alone. The
// trust is measured on the monotonic clock from the time at which the last successful heartbeat was sent, less a margin, so that it always
// ends before the lease in the table. Safe for concurrent use.
type Lease struct {
	mu     sync.Mutex
	boot   string
	before string    // the previous boot id; empty: there was none
	open   bool      // registered
	trust  time.Time // end of trust
	beats  int       // successful heartbeats in a row
	outage outage    // the latest
	change wait.Signal
}

// New returns the lease of a boot id; if it is empty, a random one.
func New(boot string) *Lease {
	return &Lease{boot: cmp.Or(boot, uuid.NewString()), change: wait.NewSignal()}
}

// ID returns the boot id.
func (l *Lease) ID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.boot
}

// Before returns the previous boot id, empty if there was none.
func (l *Lease) Before() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.before
}

// Registered reports whether the pod has a row in the table of pods, as far as it knows.
func (l *Lease) Registered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Trusted reports whether the pod may treat its jobs as its own: its trust has not ended.
func (l *Lease) Trusted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open && time.Now().Before(l.trust)
}

// Changed returns a channel that receives a value after a heartbeat has extended the trust. It is for one reader.
func (l *Lease) Changed() <-chan struct{} { return l.change }

// Left returns how long the lease may still be trusted, and whether it is open.
func (l *Lease) Left() (left time.Duration, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.trust), l.open
}

// MayJudge reports whether this pod may declare others lapsed: only after two successful heartbeats in a row, so that after an outage of
// the database no pod takes the jobs of living ones.
func (l *Lease) MayJudge() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beats >= 2 && time.Now().Before(l.trust)
}

// Beaten records that a heartbeat or registration was answered. sent is when it was sent, by the pod's clock; answered is when it was
// answered, by the database's; lasts is the duration of the lease. counts sets whether it counts towards MayJudge. Beaten reports whether
// trust had ended.
func (l *Lease) Beaten(sent, answered time.Time, lasts time.Duration, counts bool) (regained bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	regained = time.Now().After(l.trust)
	if regained && !l.trust.IsZero() { // no heartbeat failed, but none was sent for long: the process was frozen, and others may have been too
		l.beats = 0
		l.outage.begin()
	}
	l.open = true
	if counts {
		l.beats++
	}
	l.outage.answered(answered, l.beats)
	l.trust = sent.Add(lasts - lasts/10)
	l.change.Set()
	return regained
}

// Missed records a heartbeat without an answer.
func (l *Lease) Missed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats = 0
	l.outage.begin()
}

// Spared returns the time, by the database's clock, since which expired leases are not held against their pods, and for how much longer.
// This applies after an outage of this pod, for the duration of one lease (lasts). Zero: no lease is spared.
func (l *Lease) Spared(lasts time.Duration) (since time.Time, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage.spared(lasts)
}

// NewBoot sets a new boot id, after other pods closed the old one, and returns the old one.
func (l *Lease) NewBoot() (old string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old = l.boot
	l.boot, l.before, l.open, l.beats, l.trust = uuid.NewString(), old, false, 0, time.Time{}
	return old
}

// outage is this pod's latest series of unanswered heartbeats. An outage of the database cuts off all pods at once, and they reconnect one
// after the other. For the duration of one lease after its own outage, a pod therefore spares every pod whose lease had not ended when the
// outage began. A pod that has just started knows of no outage and spares none. Guarded by Lease.mu.
type outage struct {
	latest time.Time // of the latest answer, by the database's clock; zero: there was none
	open   bool      // fewer than two heartbeats in a row have been answered since
	since  time.Time // the latest answer before the outage, by the database's clock
	ended  time.Time // when the first answer after it arrived, by the process's clock; zero: not yet
}

// begin records an unanswered heartbeat.
func (o *outage) begin() {
	if !o.open {
		o.open, o.since = true, o.latest
	}
	o.ended = time.Time{}
}

// answered records an answer at a time by the database's clock. It was the beats-th in a row.
func (o *outage) answered(at time.Time, beats int) {
	o.latest = at
	if o.open && o.ended.IsZero() {
		o.ended = time.Now()
	}
	if beats >= 2 {
		o.open = false
	}
}

// spared implements [Lease.Spared].
func (o *outage) spared(lease time.Duration) (since time.Time, left time.Duration) {
	if left = lease - time.Since(o.ended); o.since.IsZero() || left <= 0 {
		return time.Time{}, 0
	}
	return o.since, left
}
