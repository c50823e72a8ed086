package slots

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// turnFor is the time for which a pod may keep its last slot while other pods wait, in a lane with more pods than slots. It is long
	// compared with the few milliseconds that passing on a slot takes, but short enough for the waiting pods.
	turnFor = 250 * time.Millisecond
	// askAgainAfter is the pause between a request that was not fully granted and the next request for more slots. A notification cuts the
	// wait short.
	askAgainAfter = 100 * time.Millisecond
)

// grant holds this pod's slots in a lane that has a limit across all pods. It is updated by the poller's goroutine and by heartbeat
// responses, and guarded by Lanes.mu.
type grant struct {
	held        int // slots that the table grants to this pod
	share       int // slots that this pod may keep while other pods wait
	wanted      bool
	over        bool      // all pods together hold more slots than the lane has
	warned      bool      // a heartbeat has reported over since the last request
	since       time.Time // when held last became greater than 0
	short       time.Time // when this pod last received fewer slots than it requested
	waits       bool      // the lane had work at that time, so this pod is waiting
	touched     bool      // a job has started since the last heartbeat
	unconfirmed bool      // the latest reply was lost, so the grant must be confirmed
	giveBack    bool      // unused slots must be returned, because the lane was idle between two heartbeats or because of ReturnIdle
}

// usable returns how many of the lane's jobs may run on this pod now. While other pods wait, that is at most this pod's share, or 0 if
// there are more pods than slots and this pod's turn has ended. While the pods hold more slots than the lane has, for example because its
// limit was lowered, no pod starts jobs, and freed slots are returned until the lane is within its limit.
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

// apply applies a reply to a slot request.
func (g *grant) apply(s store.Slots, wish int, now time.Time) {
	if g.held == 0 && s.Held > 0 {
		g.since = now
	}
	// If a heartbeat has meanwhile reported that the lane is over its limit, its report may be newer than this reply.
	g.held, g.share, g.wanted, g.over = s.Held, s.Share, s.OthersWait, s.Over || g.warned
	g.giveBack, g.unconfirmed = false, g.warned
	g.short, g.waits = time.Time{}, false
	if s.Held < wish {
		g.short, g.waits = now, s.Work
	}
}

// apply applies a heartbeat's report about a lane, and reports whether the pod must poll. Two kinds of report may be outdated: that the
// lane is no longer over its limit, and that this pod holds fewer slots than it was granted, which occurs after the lane was deleted and
// recreated. These reports are not applied until a request has confirmed them.
func (entry *lane) apply(b store.Lane) (poll bool) {
	g := &entry.grant
	if entry.slots == nil {
		*g = grant{}
		return false
	}
	// Poll if another pod is waiting, or if this pod is waiting and a slot has become free without a notification.
	poll = b.Wanted && !g.wanted && g.held > 0 || b.Free > 0 && g.waits
	g.wanted = b.Wanted
	if (b.Over != g.over || b.Held < g.held) && g.held > 0 {
		g.unconfirmed, poll = true, true
	}
	g.over, g.warned = g.over || b.Over, g.warned || b.Over
	if idle := !g.touched && g.held > entry.used; idle {
		g.giveBack, poll = true, true
	}
	g.touched = false
	return poll
}

// Unused returns the limited lanes in which this pod could run jobs but neither holds nor awaits slots, as spans of lanes that are adjacent
// in the latest heartbeat. The caller searches them for jobs, and passes up to limit lanes with jobs to Asks. The limit is one more than
// the number of free slots, so that Asks notices if more lanes have jobs. If heard is not set and the previous search was just a moment
// ago, Unused instead returns the delay after which to search. Each call starts at a random lane, so that no lane always comes last.
func (l *Lanes) Unused(heard bool, now time.Time) (spans []store.Span, limit int, later time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freeAtSearch = max(0, l.total-l.used)
	if l.freeAtSearch == 0 || l.stopped() || l.closing || len(l.order) == 0 {
		return nil, 0, 0
	}
	first := rand.IntN(len(l.order)) // #nosec G404 -- fairness
	adjacent := false
	for i := range l.order {
		at := (first + i) % len(l.order)
		if !l.byName[l.order[at]].unused() {
			adjacent = false
			continue
		}
		if at == 0 {
			spans = append(spans, store.Span{})
		} else if !adjacent {
			spans = append(spans, store.Span{After: l.order[at-1]})
		}
		spans[len(spans)-1].Last, adjacent = l.order[at], true
	}
	if soon := askAgainAfter - now.Sub(l.searched); len(spans) > 0 && !heard && !l.more && soon > 0 {
		return nil, 0, soon
	}
	if l.more = false; len(spans) > 0 {
		l.searched = now
	}
	return spans, l.freeAtSearch + 1, 0
}

// unused reports whether the lane has a limit across all pods, and this pod may request slots but neither holds nor awaits any.
func (entry *lane) unused() bool {
	g := &entry.grant
	return entry.slots != nil && *entry.slots > 0 && (entry.limit == nil || *entry.limit > 0) && entry.open && entry.used == 0 && g.held == 0 && !g.waits && !g.unconfirmed
}

// Asks returns the requests for slots of limited lanes. A lane needs a request if this pod wants more or fewer slots than it holds. Of the
// unused lanes, Asks includes those in found, which have jobs, but no more lanes than there were free slots at the search. If heard is set,
// other pods may have changed the grants, so every lane with a grant needs a request. Asks also returns the delay after which to repeat
// requests that were recently refused, or 0 if there are none. It must be called on the poller's goroutine.
func (l *Lanes) Asks(found []string, heard bool, now time.Time) (asks []store.Ask, later time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(found) > l.freeAtSearch {
		found, l.more, later = found[:l.freeAtSearch], true, askAgainAfter
	}
	for _, name := range l.order {
		lane := l.byName[name]
		if lane.slots == nil || lane.unused() && !slices.Contains(found, name) {
			continue
		}
		g := &lane.grant
		wish := lane.used
		if lane.open && !l.stopped() && !l.closing && !g.giveBack {
			wish += max(0, l.total-l.used)
			if lane.limit != nil {
				wish = min(wish, *lane.limit)
			}
			wish = max(lane.used, min(wish, *lane.slots))
		}
		target := wish
		switch {
		case g.held == 0:
		case g.wanted && !g.over && g.share > g.held: // this pod is one of the waiting pods
			target = max(lane.used, min(target, g.share))
		case g.wanted || g.over:
			target = max(lane.used, min(target, g.usable(now)))
		}
		more := target > g.held
		if soon := askAgainAfter - now.Sub(g.short); more && !heard && soon > 0 {
			more, later = false, max(later, soon)
		}
		satisfied := g.waits && wish <= g.held // report this, so that other pods do not wait for this one
		if more || target < g.held || satisfied || g.unconfirmed || heard && g.held > 0 {
			asks = append(asks, store.Ask{Lane: name, Target: target, Wish: wish, Used: lane.used})
			// Even if the reply is lost, returned slots no longer belong to this pod.
			g.held, g.unconfirmed, g.warned = min(g.held, target), true, false
		}
	}
	return asks, later
}

// Settle applies the replies to this pod's slot requests, and reports whether other pods must be woken. It does nothing if still returns
// false because this pod's id has changed. If a lane has no reply, either it is no longer limited or this pod has been closed.
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
		if lane := l.byName[ask.Lane]; lane != nil {
			lane.grant.apply(byName[ask.Lane], ask.Wish, now)
		}
	}
	return wake
}

// ReturnIdle is called with the lanes in which a claim has found no more jobs. Claims and requests take time for every lane with a grant.
// If the number of limited lanes in which this pod holds unused slots exceeds its number of slots, the next request therefore returns the
// unused slots of the given lanes. Otherwise, the pod keeps a lane's slots until the lane has been idle between two heartbeats.
func (l *Lanes) ReturnIdle(lanes ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := 0
	for _, lane := range l.byName {
		if lane.grant.held > lane.used {
			idle++
		}
	}
	if idle <= l.total {
		return
	}
	for _, name := range lanes {
		if lane := l.byName[name]; lane != nil {
			lane.grant.giveBack = true
		}
	}
}

// DropGrants drops all grants. The engine calls it when the pod gets a new id, which has no grants, or when the database may have lost
// commits.
func (l *Lanes) DropGrants() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.byName {
		lane.grant = grant{}
	}
}

// Touch records that this pod has started jobs in a lane.
func (l *Lanes) Touch(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane := l.byName[name]; lane != nil {
		lane.grant.touched = true
	}
}

// Overdue reports whether a slot that has just become free must be returned to other pods.
func (l *Lanes) Overdue(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.byName[name]
	return lane != nil && lane.slots != nil && lane.grant.held > lane.grant.usable(time.Now())
}

// Close makes the pod stop requesting slots and return those that it does not use.
func (l *Lanes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
}
