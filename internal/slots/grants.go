package slots

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// turnFor is the time for which a pod may keep its last slot while other pods wait, in a lane with more pods than slots. Passing on a slot
// takes two requests, which also delay the claims of both pods: about ten milliseconds, and a hundred on a busy server.
const turnFor = 2 * time.Second

// grant holds this pod's slots in a lane that has a limit across all pods. It is guarded by Lanes.mu.
type grant struct {
	state state
	held  int       // slots that the table grants to this pod, or fewer
	share int       // slots that this pod may keep while other pods wait, or 0 if its turn ends
	since time.Time // when held last became greater than 0
}

// state is the state of a grant. [grant.next] is the transition function; a test has its table.
//
//	       jobs found          granted           no more jobs          others wait, or still unused
//	idle ─────────────▶ asked ─────────▶ holding ────────────▶ resting ─────────────────────────────┐
//	 ▲                  │ │ │ │                                                                     ▼
//	 └───── no jobs ────┘ │ │ └─ others wait ─▶ yielding ──────────── no more jobs ──────────▶ returning
//	queued ◀─ refused ────┘ └─ over its limit ─▶ over                                               │
//	 │                                            │                                                 │
//	 └─ slot handed over ──▶ asking ◀─ within it ─┘                                                 │
//	                           └───────── request sent ─────────▶ asked ◀────── request sent ───────┘
//
// A notification moves asked, queued, holding and yielding to asking, and resting to returning; a heartbeat that differs from the grant
// moves to asking, too. A heartbeat that warns moves asked to over, and over to returning if a reply was lost.
type state int

const (
	idle      state = iota // holds no slots and waits for none
	asking                 // must send a request
	asked                  // sent a request; if its reply was lost, must send another
	queued                 // waits for more slots, which other pods hand over in the table
	holding                // has the slots that it requested
	resting                // knows no jobs for its unused slots, and returns them when it requests slots of other lanes
	yielding               // other pods wait, so it returns slots above its share, or after its turn
	returning              // must return its unused slots
	over                   // all pods together hold more slots than the lane has, so no pod starts jobs
)

// event is an input of the state machine.
type event struct {
	kind   eventKind
	keep   int         // sent
	wish   int         // answered
	answer store.Slots // answered
	beat   store.Lane  // beaten
	at     time.Time   // answered
}

type eventKind int

const (
	sent      eventKind = iota // a request was sent that keeps some slots
	answered                   // its reply arrived
	beaten                     // the response to a heartbeat arrived
	notified                   // a slot was handed over, or other pods are waiting
	exhausted                  // a claim found no more jobs
)

// next moves the grant to the state after an event. The lane runs used jobs on this pod. It reports whether the pod must claim now, because
// a request must be sent before the claim.
func (g *grant) next(e event, used int) (claim bool) {
	was := g.state
	switch e.kind {
	case sent: // even if the reply is lost, returned slots no longer belong to this pod
		g.held = min(g.held, e.keep)
		g.ask()
		g.state = asked
	case answered:
		g.answered(e)
	case beaten:
		g.beaten(e.beat, used)
	case notified:
		switch was {
		case resting:
			g.state = returning
		case asked, queued, holding, yielding:
			g.ask()
		}
	case exhausted:
		switch was {
		case queued, holding:
			g.state = resting
		case yielding:
			g.state = returning
		}
	}
	return g.state == asking || g.state != was && (g.state == returning || g.state == over)
}

// ask makes the pod send a request. Until it has the reply, it starts no jobs in a lane that was over its limit.
func (g *grant) ask() {
	if g.state == over {
		g.held = 0
	}
	g.state = asking
}

// answered applies the reply to a request. A notification or a warning that arrived in the meantime may be newer than the reply, so only
// the reply to the next request ends these states.
func (g *grant) answered(e event) {
	if g.state != asked && g.state != asking && g.state != over {
		return // the grants were dropped
	}
	if g.held == 0 {
		g.since = e.at
	}
	g.held, g.share = e.answer.Held, e.answer.Share
	switch {
	case g.state == asking:
	case g.held > 0 && (g.state == over || e.answer.Over):
		g.state = over
	case g.held > g.share && e.answer.OthersWait:
		g.state = yielding
	case g.held < e.wish && e.answer.Work:
		g.state = queued
	case g.held > 0:
		g.state = holding
	default:
		g.state = idle
	}
}

// beaten applies a heartbeat's report. The report may be older than the latest reply. Unless it is a warning, it therefore only causes a
// request.
func (g *grant) beaten(b store.Lane, used int) {
	switch unused := g.held > used; {
	case b.Slots == nil:
		*g = grant{}
	case b.Over && g.state == over && g.held == 0 && b.Held > used:
		g.state = returning // a reply was lost
	case b.Over && (g.held > 0 || g.state == asked || g.state == over):
		g.state = over
	case g.state == over:
		g.ask()
	case g.state == asking || g.state == asked:
	case b.Held != g.held, used > g.held, b.Wanted && (g.state == holding || g.state == resting), b.Free > 0 && g.state == queued:
		g.ask()
	case unused && (g.state == resting || g.state == yielding):
		g.state = returning
	case unused:
		g.state = resting
	}
}

// usable returns how many of the lane's jobs may run on this pod now.
func (g *grant) usable(now time.Time) int {
	switch {
	case g.state == over:
		return 0
	case g.state != yielding:
		return g.held
	case g.share > 0:
		return min(g.held, g.share)
	case now.Sub(g.since) < turnFor:
		return min(g.held, 1)
	}
	return 0
}

// most returns how many of the lane's jobs may run on this pod, regardless of grants.
func (l *Lanes) most(lane *lane) int {
	switch {
	case !lane.open || l.stopped() || l.closing:
		return 0
	case lane.limit != nil:
		return min(*lane.limit, *lane.slots)
	}
	return *lane.slots
}

// uncovered returns the number of free slots of this pod for which it holds no slots in limited lanes. A pod requests no more than that, so
// that no lane's slots are held by a pod that is busy with other lanes.
func (l *Lanes) uncovered() int {
	n := l.total - l.used
	for _, lane := range l.byName {
		if lane.slots != nil && lane.grant.state != resting {
			n -= max(0, lane.grant.held-lane.used)
		}
	}
	return max(0, n)
}

// seeks reports whether this pod requests more slots in a limited lane once it knows that jobs are waiting there.
func (l *Lanes) seeks(lane *lane) bool {
	if lane.slots == nil || lane.grant.held > lane.used || l.most(lane) <= lane.used {
		return false
	}
	return lane.grant.state == idle || lane.grant.state == holding || lane.grant.state == resting
}

// Unused returns the limited lanes in which this pod could run more jobs than it has slots, as spans of lanes that are adjacent in the latest
// heartbeat. The caller searches them for jobs, and passes up to limit lanes with jobs to Asks. The limit is one more than the number of
// slots that may be requested, so that Asks notices if more lanes have jobs. If there is no news of jobs and the previous search found none,
// Unused returns lanes only once per poll interval. Each call starts at a random lane, so that no lane always comes last.
func (l *Lanes) Unused(news bool, poll time.Duration, now time.Time) (spans []store.Span, limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if news {
		l.found = max(l.found, 1) // if no slot is free, the search follows once there is one
	}
	free := l.uncovered()
	if free == 0 || len(l.order) == 0 || l.found == 0 && now.Sub(l.searched) < poll/2 {
		return nil, 0
	}
	first := rand.IntN(len(l.order)) // #nosec G404 -- fairness
	adjacent := false
	for i := range l.order {
		at := (first + i) % len(l.order)
		if !l.seeks(l.byName[l.order[at]]) {
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
	l.freeAtSearch, l.found, l.searched = free, 0, now
	return spans, free + 1
}

// Asks returns the requests for slots of limited lanes: for more slots in the lanes in found, which have jobs, and for the lanes whose state
// requires a request. When it requests more slots, it also returns the unused slots of resting lanes. It must be called on the poller's
// goroutine.
func (l *Lanes) Asks(found []string, now time.Time) (asks []store.Ask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found += len(found)
	more := l.shareOut(found[:min(len(found), l.freeAtSearch)])
	for _, name := range l.order {
		lane := l.byName[name]
		if lane.slots == nil {
			continue
		}
		g, most := &lane.grant, l.most(lane)
		extra, seeks := more[name]
		if seeks || g.state != resting && g.state != returning {
			extra += max(0, min(g.held, most)-lane.used)
		}
		wish := lane.used + min(extra, max(0, l.total-l.used))
		keep := wish
		if g.state == yielding || g.state == over {
			keep = max(lane.used, min(wish, g.usable(now)))
		}
		must := g.state == asking || g.state == asked || g.state == returning || g.state == queued && most == 0
		returns := g.state == yielding || g.state == over || most == 0 || g.state == resting && len(more) > 0
		if seeks || must || returns && g.held > keep {
			asks = append(asks, store.Ask{Lane: name, Keep: keep, Wish: wish, Used: lane.used})
			g.next(event{kind: sent, keep: keep}, lane.used)
		}
	}
	return asks
}

// shareOut shares the uncovered slots among the lanes that request more, one slot at a time.
func (l *Lanes) shareOut(found []string) map[string]int {
	more := map[string]int{}
	for _, name := range l.order {
		if lane := l.byName[name]; lane.grant.state == asking || lane.grant.state == asked || slices.Contains(found, name) && l.seeks(lane) {
			more[name] = 0
		}
	}
	for free, left := l.uncovered(), true; left; {
		left = false
		for name, n := range more {
			if lane := l.byName[name]; free > 0 && n < l.most(lane)-max(lane.used, lane.grant.held) {
				more[name], free, left = n+1, free-1, true
			}
		}
	}
	return more
}

// Settle applies the replies to this pod's slot requests, and reports whether the pod must claim again, because it must return slots or can
// request slots of more lanes. It does nothing if still returns false because this pod's id has changed. If a lane has no reply, either it
// is no longer limited or this pod has been closed.
func (l *Lanes) Settle(asks []store.Ask, answers []store.Slots, now time.Time, still func() bool) (claim bool) {
	byName := map[string]store.Slots{}
	for _, a := range answers {
		byName[a.Lane] = a
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !still() {
		return false
	}
	for _, ask := range asks {
		if lane := l.byName[ask.Lane]; lane != nil {
			again := lane.grant.next(event{kind: answered, wish: ask.Wish, answer: byName[ask.Lane], at: now}, lane.used)
			claim = claim || again || lane.grant.held > max(lane.used, lane.grant.usable(now))
		}
	}
	return claim || l.found > l.freeAtSearch && l.uncovered() > 0
}

// apply applies an event to the grants in the named lanes, and reports whether the pod must claim.
func (l *Lanes) apply(kind eventKind, names ...string) (claim bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if lane := l.byName[name]; lane != nil && lane.slots != nil {
			claim = lane.grant.next(event{kind: kind}, lane.used) || claim
		}
	}
	if claim && l.uncovered() == 0 {
		l.found = max(l.found, 1) // the pod returns what it is handed, so it must search once a slot is free
	}
	return claim
}

// Notified applies a notification that another pod has handed over a slot of a lane or is waiting for one, and reports whether the pod must
// claim, to send requests.
func (l *Lanes) Notified(lanes ...string) (claim bool) { return l.apply(notified, lanes...) }

// Claimed records the result of a claim: the reserved slots that it left, and the lanes in which it found no more jobs. It reports whether
// the pod must claim again, to send requests.
func (l *Lanes) Claimed(left map[string]int, lanes ...string) (claim bool) {
	claim = l.apply(exhausted, lanes...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range left {
		if lane := l.byName[name]; n == 0 && lane != nil && l.seeks(lane) {
			l.found = max(l.found, 1) // the lane may have jobs for more slots
		}
	}
	return claim
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
