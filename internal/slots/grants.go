package slots

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// turnFor is how long a pod keeps the last slot of a lane with more pods than slots while another pod waits. It is long compared with
	// the milliseconds that passing the slot on takes, and short for the waiting pod.
	turnFor = 250 * time.Millisecond
	// askAgainAfter is how long a pod that got fewer slots than it requested waits before it requests again, unless it is notified. It then
	// also requests the slots that it has needed since.
	askAgainAfter = 100 * time.Millisecond
)

// grant holds this pod's slots of a lane that has a limit over all pods. The poller's goroutine and the answers of heartbeats write it;
// Lanes.mu guards it.
type grant struct {
	held        int // slots that the table grants to this pod
	share       int // slots that it may keep while other pods wait
	wanted      bool
	over        bool      // all pods together hold more slots than the lane has
	warned      bool      // a heartbeat has reported this since the last request
	since       time.Time // when held last rose from 0
	short       time.Time // when it last got fewer slots than it requested
	waits       bool      // this happened while it had jobs to run
	touched     bool      // a job was started since the last heartbeat
	unconfirmed bool      // the latest answer was lost
	giveBack    bool      // idle for a heartbeat: unused slots are given back
}

// usable returns how many jobs of the lane may run here now. While other pods wait, it falls to this pod's share, or to 0 if there are more
// pods than slots and this pod's turn is over. While the pods hold more slots than the lane has, for example after its limit was lowered,
// no pod starts jobs: freed slots are given back until there is room again.
func (g *grant) usable(now time.Time) int {
	switch {
	case g.over:
		return 0
	case !g.wanted:
		return g.held
	case g.share > 0:
		return min(g.held, g.share)
	case now.Sub(g.since) < turnFor:
		return min(g.held, 1)
	}
	return 0
}

// apply applies an answer of the table.
func (g *grant) apply(s store.Slots, wish int, now time.Time) {
	if g.held == 0 && s.Held > 0 {
		g.since = now
	}
	// A heartbeat that reported it meanwhile may have read a later state of the lane.
	g.held, g.share, g.wanted, g.over = s.Held, s.Share, s.Want, s.Over || g.warned
	g.giveBack, g.unconfirmed = false, g.warned
	g.short, g.waits = time.Time{}, false
	if s.Held < wish {
		g.short, g.waits = now, s.Work
	}
}

// told applies a heartbeat's report about a lane, and reports whether it calls for a sweep. A report that the lane is no longer overfull,
// or that this pod holds fewer slots than it was granted, may be older than what this pod knows. It is therefore confirmed by a request
// first. The latter happens after the lane was deleted and created again.
func (one *lane) told(b store.Lane) (look bool) {
	g := &one.grant
	if one.slots == nil {
		*g = grant{}
		return false
	}
	// Another pod waits; or this pod waits, and a slot has become free without a notification.
	look = b.Wanted && !g.wanted && g.held > 0 || b.Free > 0 && g.waits
	g.wanted = b.Wanted
	if (b.Over != g.over || b.Held < g.held) && g.held > 0 {
		g.unconfirmed, look = true, true
	}
	g.over, g.warned = g.over || b.Over, g.warned || b.Over
	if idle := !g.touched && g.held > one.used; idle {
		g.giveBack, look = true, true
	}
	g.touched = false
	return look
}

// Asks returns the requests for slots of limited lanes: where this pod wants more or fewer than it holds, or where other pods may have
// changed something (heard). later is the delay after which to repeat requests that were refused a moment ago; 0: there are none. Call it
// in the poller's goroutine.
func (l *Lanes) Asks(heard bool, now time.Time) (asks []store.Ask, later time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.order {
		one := l.byName[name]
		if one.slots == nil {
			continue
		}
		g := &one.grant
		wish := one.used
		if one.open && !l.stopped() && !l.closing && !g.giveBack {
			wish += max(0, l.total-l.used)
			if one.limit != nil {
				wish = min(wish, *one.limit)
			}
			wish = max(one.used, min(wish, *one.slots))
		}
		target := wish
		switch {
		case g.held == 0:
		case g.wanted && !g.over && g.share > g.held: // this pod is among those that wait
			target = max(one.used, min(target, g.share))
		case g.wanted || g.over:
			target = max(one.used, min(target, g.usable(now)))
		}
		more := target > g.held
		if soon := askAgainAfter - now.Sub(g.short); more && !heard && soon > 0 {
			more, later = false, max(later, soon)
		}
		satisfied := g.waits && wish <= g.held // report it, so that the other pods do not wait for this one
		if more || target < g.held || satisfied || g.unconfirmed || heard && g.held > 0 {
			asks = append(asks, store.Ask{Lane: name, Target: target, Wish: wish, Used: one.used})
			// Slots that are given back no longer belong to this pod, even if the answer is lost.
			g.held, g.unconfirmed, g.warned = min(g.held, target), true, false
		}
	}
	return asks, later
}

// Settle applies the table's answers to asks and reports whether other pods have to be woken. It does nothing if still reports that this
// pod's boot id has changed. A lane without an answer is no longer limited, or this pod is closed.
func (l *Lanes) Settle(asks []store.Ask, answers []store.Slots, now time.Time, still func() bool) (wake bool) {
	byName := map[string]store.Slots{}
	for _, a := range answers {
		byName[a.Lane] = a
		wake = wake || a.Wake
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !still() {
		return false
	}
	for _, ask := range asks {
		if one := l.byName[ask.Lane]; one != nil {
			one.grant.apply(byName[ask.Lane], ask.Wish, now)
		}
	}
	return wake
}

// DropGrants drops all grants: the pod has a new boot id, which holds none.
func (l *Lanes) DropGrants() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.byName {
		one.grant = grant{}
	}
}

// Touch records that jobs of a lane were started here.
func (l *Lanes) Touch(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.byName[name]; one != nil {
		one.grant.touched = true
	}
}

// Overdue reports whether a slot of a lane that has just become free has to be given back.
func (l *Lanes) Overdue(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byName[name]
	return one != nil && one.slots != nil && one.grant.held > one.grant.usable(time.Now())
}

// Close makes the pod request no more slots and give back those that it does not use.
func (l *Lanes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
}
