package fleet

import (
	"cmp"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// Lease is a pod's lease in the table of pods. It holds the pod ID and the time until which the pod can trust other pods to leave its jobs
// alone. Trust is measured on the monotonic clock, from when the last successful heartbeat was sent, and ends a margin before the lease in
// the table expires. If the machine is suspended, the monotonic clock stands still and the lease may expire first, but then the next
// heartbeat is refused. Lease is safe for concurrent use.
type Lease struct {
	mu     sync.Mutex
	podID  string
	before string    // previous pod ID; empty if there was none
	open   bool      // whether the pod is registered
	trust  time.Time // when the trust ends
	beats  int       // number of consecutive successful heartbeats
	outage outage    // the latest outage
	change routine.Signal
}

// NewLease returns a lease with the given pod ID, or with a random pod ID if podID is empty.
func NewLease(podID string) *Lease {
	return &Lease{podID: cmp.Or(podID, uuid.NewString()), change: routine.NewSignal()}
}

// ID returns the pod ID.
func (l *Lease) ID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.podID
}

// PreviousID returns the previous pod ID, or the empty string if there was none.
func (l *Lease) PreviousID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.before
}

// Registered reports whether the pod has, as far as it knows, an open row in the table of pods.
func (l *Lease) Registered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Trusted reports whether the pod may still treat its jobs as its own.
func (l *Lease) Trusted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open && time.Now().Before(l.trust)
}

// Changed returns a channel that receives a value after a heartbeat has extended the trust. It supports a single reader.
func (l *Lease) Changed() <-chan struct{} { return l.change }

// Left returns how long the lease can still be trusted, and whether it is open.
func (l *Lease) Left() (left time.Duration, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.trust), l.open
}

// MayJudge reports whether this pod may declare other pods dead. It requires two consecutive successful heartbeats, so that no pod takes
// over the jobs of live pods after a database outage.
func (l *Lease) MayJudge() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beats >= 2 && time.Now().Before(l.trust)
}

// Renewed records a successful heartbeat or registration. sent is when it was sent, by the pod's clock; answered is when it was answered,
// by the database's clock; and lasts is the lease's duration. If counts is set, the heartbeat counts toward MayJudge. Renewed reports
// whether the trust had ended, or had not begun, before this heartbeat.
func (l *Lease) Renewed(sent, answered time.Time, lasts time.Duration, counts bool) (regained bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	regained = time.Now().After(l.trust)
	if regained && !l.trust.IsZero() { // no heartbeat failed, but none was sent for long: this process, and perhaps others, was frozen
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

// Missed records a heartbeat without a reply.
func (l *Lease) Missed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats = 0
	l.outage.begin()
}

// Spared reports which pods must not be declared dead: for the duration left, all pods whose lease had not expired at since, a time on the
// database's clock. They are spared for a lease duration (lasts) after an outage of this pod. If no pods are spared, Spared returns zero
// values.
func (l *Lease) Spared(lasts time.Duration) (since time.Time, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage.spared(lasts)
}

// NewBoot replaces the pod ID after other pods have closed its row. It returns the old pod ID.
func (l *Lease) NewBoot() (old string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old = l.podID
	l.podID, l.before, l.open, l.beats, l.trust = uuid.NewString(), old, false, 0, time.Time{}
	return old
}

// outage describes this pod's latest series of failed heartbeats. A database outage cuts off all pods at once, but they reconnect one after
// another. For a lease duration after an outage, a pod therefore spares every pod whose lease had not expired when the outage began. A pod
// that has just started has seen no outage and spares none. outage is guarded by Lease.mu.
type outage struct {
	latest time.Time // time of the latest reply, on the database's clock; zero if there was none
	open   bool      // fewer than two consecutive heartbeats have succeeded since
	since  time.Time // time of the last reply before the outage, on the database's clock
	ended  time.Time // when the first reply after the outage arrived, on the process's clock; zero if none has
}

// begin starts an outage, or continues the open one.
func (o *outage) begin() {
	if !o.open {
		o.open, o.since = true, o.latest
	}
	o.ended = time.Time{}
}

// answered records a successful reply at the given time on the database's clock. The beats argument is the number of consecutive successful
// heartbeats, including this one.
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
