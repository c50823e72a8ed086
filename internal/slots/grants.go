package slots

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// turnFor is how long a pod keeps the last slot of a lane for which there are more pods than slots, once another one
	// waits: long against the milliseconds that passing it on takes, short for who waits.
	turnFor = 250 * time.Millisecond
	// askAgainAfter is how long a pod that got less than it asked for waits before it asks again unheard. What it would have asked
	// for meanwhile it asks for then.
	askAgainAfter = 100 * time.Millisecond
)

// grant is this pod's part of a lane that is limited over all pods. The poller's goroutine and the answers of heartbeats write it; Lanes.mu
// guards it.
type grant struct {
	held    int // what the table grants us
	share   int // what we may keep while others wait
	wanted  bool
	over    bool      // all pods together hold more than the lane has
	warned  bool      // so a heartbeat told since we asked
	since   time.Time // when held last rose from nothing
	short   time.Time // when we last got less than we asked for
	waits   bool      // so we did while there were jobs to run
	touched bool      // a job was started since the last heartbeat
	unsure  bool      // the latest answer was lost
	shed    bool      // idle for a heartbeat: what is not used goes back
}

// usable is how many jobs of the lane may run here now. While others wait it falls to our share; where there are more pods
// than slots, to nothing when our turn is over. While pods hold more than there is, as after a limit was lowered, nobody
// starts anything: what becomes free is given back, until there is room again.
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

// settled takes an answer of the table.
func (g *grant) settled(s store.Slots, wish int, now time.Time) {
	if g.held == 0 && s.Held > 0 {
		g.since = now
	}
	// A heartbeat that told so meanwhile may have seen a later state of the lane.
	g.held, g.share, g.wanted, g.over = s.Held, s.Share, s.Want, s.Over || g.warned
	g.shed, g.unsure = false, g.warned
	g.short, g.waits = time.Time{}, false
	if s.Held < wish {
		g.short, g.waits = now, s.Work
	}
}

// told takes what a heartbeat told of a lane, and reports whether that is worth a look. That a lane is not overfull any more
// is believed only when it was asked for: a heartbeat's answer may be older than what we were told meanwhile. So is that we hold
// less than we were given, as after the lane was deleted and made anew.
func (one *lane) told(b store.Lane) (look bool) {
	g := &one.grant
	if one.slots == nil {
		*g = grant{}
		return false
	}
	// Another pod waits; or we do, and something has come free without our having heard of it.
	look = b.Wanted && !g.wanted && g.held > 0 || b.Free > 0 && g.waits
	g.wanted = b.Wanted
	if (b.Over != g.over || b.Held < g.held) && g.held > 0 {
		g.unsure, look = true, true
	}
	g.over, g.warned = g.over || b.Over, g.warned || b.Over
	if idle := !g.touched && g.held > one.used; idle {
		g.shed, look = true, true
	}
	g.touched = false
	return look
}

// Asks returns the requests for slots of limited lanes: where this pod wants more or fewer than it holds, or where other pods may have changed
// something (heard). later is the delay after which to ask again for slots that were refused a moment ago; 0: none were. Call it in the
// poller's goroutine.
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
		if one.open && !l.shut() && !l.closing && !g.shed {
			wish += max(0, l.total-l.used)
			if one.limit != nil {
				wish = min(wish, *one.limit)
			}
			wish = max(one.used, min(wish, *one.slots))
		}
		target := wish
		switch {
		case g.held == 0:
		case g.wanted && !g.over && g.share > g.held: // we are among those that wait
			target = max(one.used, min(target, g.share))
		case g.wanted || g.over:
			target = max(one.used, min(target, g.usable(now)))
		}
		more := target > g.held
		if soon := askAgainAfter - now.Sub(g.short); more && !heard && soon > 0 {
			more, later = false, max(later, soon)
		}
		satisfied := g.waits && wish <= g.held // and to be known so, lest the others wait for us
		if more || target < g.held || satisfied || g.unsure || heard && g.held > 0 {
			asks = append(asks, store.Ask{Lane: name, Target: target, Wish: wish, Used: one.used})
			// What is given back is not ours from here on, whatever becomes of the answer.
			g.held, g.unsure, g.warned = min(g.held, target), true, false
		}
	}
	return asks, later
}

// Settle takes the table's answers to asks, unless still reports that this pod has another boot id by now, and reports whether other pods are
// to be woken. A lane without an answer is not limited any more, or this pod is closed.
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
			one.grant.settled(byName[ask.Lane], ask.Wish, now)
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

// Touch notes that jobs of a lane were started here.
func (l *Lanes) Touch(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.byName[name]; one != nil {
		one.grant.touched = true
	}
}

// Overdue reports whether a slot of a lane that has just become free is to be given back.
func (l *Lanes) Overdue(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byName[name]
	return one != nil && one.slots != nil && one.grant.held > one.grant.usable(time.Now())
}

// Close has the pod ask for no more slots, and give back those that it does not use.
func (l *Lanes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
}
