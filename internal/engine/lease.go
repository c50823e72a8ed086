package engine

import (
	"cmp"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/wait"
)

// lease is the identity of an engine in the table of pods: its boot id, and until when it may trust that the others leave its jobs
// alone. Trust is counted on the monotonic clock from when the last successful heartbeat was sent, less a margin, so that
// it always ends before the lease in the table does.
type lease struct {
	mu     sync.Mutex
	boot   string
	before string    // the boot id before this one; empty: there was none
	open   bool      // registered
	trust  time.Time // end of trust
	beats  int       // successful heartbeats in a row
	outage outage    // the latest
	change wait.Signal
}

// newLease returns the lease of a boot id, a random one when it is empty.
func newLease(boot string) *lease {
	return &lease{boot: cmp.Or(boot, uuid.NewString()), change: wait.NewSignal()}
}

func (l *lease) id() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.boot
}

func (l *lease) IdBefore() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.before
}

func (l *lease) Registered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

func (l *lease) Trusted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open && time.Now().Before(l.trust)
}

// left returns how long the lease may still be trusted, and whether it is open.
func (l *lease) left() (left time.Duration, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.trust), l.open
}

// mayJudge reports whether this pod may call others lapsed: only after two heartbeats of its own in a row, so that an
// outage of the database makes nobody steal from the living.
func (l *lease) mayJudge() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beats >= 2 && time.Now().Before(l.trust)
}

// beaten notes a successful heartbeat or registration, sent at a moment and answered at another one by the database's clock, which
// may count for the right to judge others; it reports whether trust had ended.
func (l *lease) beaten(sent, answered time.Time, lasts time.Duration, counts bool) (regained bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	regained = time.Now().After(l.trust)
	if regained && !l.trust.IsZero() { // no heartbeat failed, but none was sent for long: the process was frozen, and others may have been
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

func (l *lease) missed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats = 0
	l.outage.begin()
}

// spared is [outage.spared] of the pod's latest outage.
func (l *lease) spared(lasts time.Duration) (since time.Time, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage.spared(lasts)
}

// renew gives the process a new boot id, after its old one was closed by others, and returns the old one.
func (l *lease) Renew() (old string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old = l.boot
	l.boot, l.before, l.open, l.beats, l.trust = uuid.NewString(), old, false, 0, time.Time{}
	return old
}
