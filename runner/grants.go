package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/wait"
)

const (
	// turnFor is how long a pod keeps the last slot of a lane for which there are more pods than slots, once another one
	// waits: long against the milliseconds that passing it on takes, short for who waits.
	turnFor = 250 * time.Millisecond
	// askAgainAfter is how long a pod that got less than it asked for waits before it asks again unheard. What it would have asked
	// for meanwhile it asks for then.
	askAgainAfter = 100 * time.Millisecond
)

// grant is this pod's part of a lane that is limited over all pods. It is written by the poller's goroutine, and by
// heartbeats what they tell; lanes.mu guards it.
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

// asks are what this pod would have of the limited lanes, where that is not what it has, or where the others may have
// something to say (heard), and in how long it is to ask for what it was refused a moment ago (0: there is nothing). Call it in the
// poller's goroutine.
func (l *lanes) asks(heard bool, now time.Time) (asks []store.Ask, later time.Duration) {
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

// settled takes the table's answers to asks, unless we are not still the pod that asked; a lane without an answer is not
// limited any more, or we are closed.
func (l *lanes) settled(asks []store.Ask, answers []store.Slots, now time.Time, still func() bool) (wake bool) {
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

// ungranted forgets all grants: this process is another pod from here on, and holds none.
func (l *lanes) ungranted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.byName {
		one.grant = grant{}
	}
}

// touched notes that jobs of a lane were started here.
func (l *lanes) touched(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.byName[name]; one != nil {
		one.grant.touched = true
	}
}

// overdue reports whether a slot of a lane that has just become free is to be given back.
func (l *lanes) overdue(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byName[name]
	return one != nil && one.slots != nil && one.grant.held > one.grant.usable(time.Now())
}

// settleSlots asks for slots of limited lanes and gives back what others wait for, before a claim. Call it in the poller's
// goroutine: answers must come in the order of their questions.
func (r *engine) settleSlots(ctx context.Context) error {
	asks, later := r.lanes.asks(r.heard.Swap(false), time.Now())
	if later > 0 && !r.asksAgain.Swap(true) {
		// What has come since the answer was no is claimed by nobody's look but this: see TestAJobOfALimitedLaneThatComesRightAfter….
		time.AfterFunc(later, func() {
			r.asksAgain.Store(false)
			r.wake()
		})
	}
	if len(asks) == 0 {
		return nil
	}
	asking, cancel := wait.Linger(ctx, time.Second)
	defer cancel()
	boot := r.boot()
	answers, err := r.store.SettleSlots(asking, boot, asks, r.mineAll)
	if err != nil {
		return err // what came of it is read by asking again
	}
	if r.lanes.settled(asks, answers, time.Now(), func() bool { return r.boot() == boot }) {
		r.wakePeers()
	}
	return nil
}

// returnSlots gives back what a pod that stops does not use any more, until ctx ends. Call it when the poller has ended.
func (r *engine) returnSlots(ctx context.Context) {
	r.lanes.close()
	for ok := true; ok; ok = wait.For(ctx, r.opts.HeartbeatEvery) {
		_ = r.settleSlots(ctx) // what is left is taken back when the pod has left
	}
}

// close ends the pod's wish for slots.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
}
