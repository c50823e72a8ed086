package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Claims ahead: while the handlers of a kind return sooner than a claim takes, a claim takes more jobs than slots are free, and each waits in
// memory for a slot. A handler that returns gives its slot to the next of them at once, and its end is written meanwhile. The table has the
// job as running and not started, so that the crash of a pod does not count against a job that may only have waited: recovery returns it
// unspent, and no later claim of it is ahead. See ADR 0041.
const (
	// aheadPerSlot is the largest number of claims ahead for each slot, and of ends that are written while their slots have gone on.
	aheadPerSlot = 10
	// aheadAtMost is the largest number of claims ahead of a pod. A claim of so many costs hardly less for each job than one of fewer, and keeps
	// more memory alive: with ten for each of 100 slots a drain took a tenth longer.
	aheadAtMost = 100
	// aheadFor is how long a claim waits for a slot at most. Then it returns to its lane, where another pod may take it.
	aheadFor = 200 * time.Millisecond
	// shortestLimit is the shortest timeout, or limit for runs without a sign of life, of kinds that are claimed ahead.
	shortestLimit = time.Second
)

// ahead are the claims that wait for a slot. Safe for concurrent use.
type ahead struct {
	waiting atomic.Int64 // claims
	passed  atomic.Int64 // ends under way whose slots have gone on
	perSlot atomic.Int64 // claims for each slot, at most: one more with each claim, and a half of them after some waited for too long
	refill  atomic.Bool  // half of the claims are used up

	mu     sync.Mutex
	lanes  map[string][]*claimAhead // the most urgent first
	names  []string                 // of lanes, which take turns
	turn   int
	taken  map[*claimAhead]bool // those that are being started or returned
	timer  *time.Timer
	filled int64 // claims after the latest put
}

// claimAhead is a claim that waits for a slot.
type claimAhead struct {
	store.Claimed
	lease job.Lease
	since time.Time
}

// put adds claims, and has expire called when they have waited for too long.
func (a *ahead) put(claims []*claimAhead, expire func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lanes == nil {
		a.lanes, a.taken = map[string][]*claimAhead{}, map[*claimAhead]bool{}
	}
	for _, c := range claims {
		if _, found := a.lanes[c.Lane]; !found {
			a.names = append(a.names, c.Lane)
		}
		a.lanes[c.Lane] = append(a.lanes[c.Lane], c)
	}
	for _, list := range a.lanes {
		slices.SortFunc(list, func(a, b *claimAhead) int { return comparePosition(&a.Claimed, &b.Claimed) })
	}
	a.filled = a.waiting.Add(int64(len(claims)))
	a.perSlot.Store(min(a.perSlot.Load()+1, aheadPerSlot-1))
	if a.timer == nil {
		a.timer = time.AfterFunc(aheadFor, expire)
	}
}

// comparePosition compares claims by their places in a lane.
func comparePosition(a, b *store.Claimed) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.ReadyAt.Compare(b.ReadyAt), cmp.Compare(a.ID, b.ID))
}

// take takes the most urgent claim of the next lane that gives it a slot; nil: there is none. The caller must call done with it.
func (a *ahead) take(slot func(lane string) bool) *claimAhead {
	if a.waiting.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.names {
		name := a.names[(a.turn+i)%len(a.names)]
		if list := a.lanes[name]; len(list) > 0 && slot(name) {
			a.turn += i + 1
			a.lanes[name], a.taken[list[0]] = list[1:], true
			if a.waiting.Add(-1) <= a.filled/2 {
				a.refill.Store(true)
			}
			return list[0]
		}
	}
	return nil
}

// remove removes the claims that match. The caller must call done with them.
func (a *ahead) remove(match func(*claimAhead) bool) (removed []*claimAhead) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, list := range a.lanes {
		a.lanes[name] = slices.DeleteFunc(list, func(c *claimAhead) bool {
			if !match(c) {
				return false
			}
			removed, a.taken[c] = append(removed, c), true
			return true
		})
	}
	a.waiting.Add(-int64(len(removed)))
	return removed
}

// done forgets claims that were taken or removed, once they are known elsewhere, or no longer ours.
func (a *ahead) done(claims ...*claimAhead) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range claims {
		delete(a.taken, c)
	}
}

// addKnown adds the leases of all claims.
func (a *ahead) addKnown(known map[job.Lease]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.taken {
		known[c.lease] = true
	}
	for _, list := range a.lanes {
		for _, c := range list {
			known[c.lease] = true
		}
	}
}

// ranks returns the rank of the least urgent claim of each lane.
func (a *ahead) ranks() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	ranks := map[string]int{}
	for name, list := range a.lanes {
		if n := len(list); n > 0 {
			ranks[name] = -list[n-1].Priority
		}
	}
	return ranks
}

// moreUrgent reports whether a claim of a lane that waits is more urgent than a job of a priority.
func (a *ahead) moreUrgent(lane string, priority int) bool {
	if a.waiting.Load() == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.lanes[lane]
	return len(list) > 0 && list[0].Priority > priority
}

// rearm sets the timer for the claim that has waited longest.
func (a *ahead) rearm(expire func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = nil
	oldest := time.Time{}
	for _, list := range a.lanes {
		for _, c := range list {
			if oldest.IsZero() || c.since.Before(oldest) {
				oldest = c.since
			}
		}
	}
	if !oldest.IsZero() {
		a.timer = time.AfterFunc(max(time.Until(oldest.Add(aheadFor)), time.Millisecond), expire)
	}
}

// nextAhead starts the next claim ahead whose lane gives it a slot, and returns its run; nil: there is none.
func (x *executor) nextAhead(slot func(lane string) bool) *Run {
	if x.Closing.Load() || !x.Lease.Trusted() {
		return nil
	}
	c := x.ahead.take(slot)
	if c == nil {
		return nil
	}
	defer x.ahead.done(c)
	if x.ahead.refill.Load() && x.backlog.hasMore() {
		x.Poller.Wake()
	}
	return x.startAhead(c)
}

// startAhead makes the run of a claim ahead, whose slot is reserved.
func (x *executor) startAhead(c *claimAhead) *Run {
	c.ClaimedAt = c.ClaimedAt.Add(time.Since(c.since)) // its handler starts now
	x.observeWait(&c.Claimed)
	one := x.NewRun(c.Claimed, c.lease.Pod)
	if one == nil {
		x.Lanes.Release(c.Lane, 1)
		x.Unknown.Raise()
	}
	return one
}

// passSlot gives the slot of a run, whose handler has returned and whose end is to be written, to the next claim ahead. It returns the run
// of that.
func (x *executor) passSlot(one *Run) *Run {
	from := one.Claimed.Lane
	if x.ahead.waiting.Load() == 0 || x.ahead.passed.Load() >= int64(aheadPerSlot*x.Slots()) || x.Lanes.UnsharedSlots(from) == 0 {
		return nil
	}
	next := x.nextAhead(func(lane string) bool { return x.Lanes.Step(from, lane) })
	if next != nil {
		x.Lanes.Stepped(from, next.Claimed.Lane, true)
		x.ahead.passed.Add(1)
		one.ahead.passed = true
	}
	return next
}

// fillSlots starts claims ahead in the slots that are free.
func (x *executor) fillSlots() {
	for next := x.nextAhead(x.Lanes.Reserve); next != nil; next = x.nextAhead(x.Lanes.Reserve) {
		x.workers.Give(next)
	}
}

// slotFree handles a slot of a lane that has become free.
func (x *executor) slotFree(lane string) {
	x.fillSlots()
	x.Identity.slotFree(lane)
}

// expireAhead returns claims that have waited for too long for a slot.
func (x *executor) expireAhead() {
	if x.returnAhead(x.leases.alive, func(c *claimAhead) bool { return time.Since(c.since) >= aheadFor }) {
		x.ahead.perSlot.Store(x.ahead.perSlot.Load() / 2)
	}
	x.ahead.rearm(x.expireAhead)
}

// returnAhead returns the claims that match to their lanes, unspent, and reports whether there were some.
func (x *executor) returnAhead(ctx context.Context, match func(*claimAhead) bool) bool {
	removed := x.ahead.remove(match)
	if len(removed) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	leases := make([]job.Lease, len(removed))
	for i, c := range removed {
		leases[i] = c.lease
	}
	boot := leases[0].Pod // or they are lost
	back, err := x.Store.HandBack(ctx, boot, leases, "claimed ahead: no slot came free")
	if err != nil || len(back) < len(removed) {
		x.Unknown.Raise() // a reply was lost, or some are to be cancelled
	}
	x.ahead.done(removed...)
	x.Log.DebugContext(ctx, "claims ahead returned", telemetry.Jobs, len(back), telemetry.Err, x.DBError(err))
	x.wakeAll()
	return true
}

// dropAhead lets go of a claim ahead whose job is to end, and reports whether there was one. The search for orphaned claims ends it.
func (i *Identity) dropAhead(id, fence int64) bool {
	removed := i.ahead.remove(func(c *claimAhead) bool { return c.ID == id && c.Fence == fence })
	i.ahead.done(removed...)
	if len(removed) > 0 {
		i.Unknown.Raise()
		i.Wake()
	}
	return len(removed) > 0
}

// shortKinds returns the kinds whose jobs may be claimed ahead, and how long the longest of them run: those whose handlers have returned
// sooner, of late, than a claim.
func (c *claimer) shortKinds() (kinds []string, longest time.Duration) {
	if !c.Opts.ClaimAhead {
		return nil, 0
	}
	for _, name := range c.HandledKinds {
		k := c.Kinds[name]
		stale := c.Opts.StaleAfter
		if k.StaleAfter != nil {
			stale = *k.StaleAfter
		}
		took := time.Duration(c.took[name].Load())
		if took == 0 || took >= c.roundTrip || k.Timeout > 0 && k.Timeout < shortestLimit || stale > 0 && stale < shortestLimit {
			continue
		}
		kinds, longest = append(kinds, name), max(longest, took)
	}
	return kinds, longest
}

// wantsAhead returns how many jobs of a lane to claim ahead, when the short kinds run at most for a time: as many as its slots run during a
// claim, less those that wait already.
func (c *claimer) wantsAhead(lane string, longest time.Duration) int {
	n := c.Lanes.UnsharedSlots(lane)
	if n == 0 || longest == 0 {
		return 0
	}
	cover := min(int64(n)*(c.ahead.perSlot.Load()+1), aheadAtMost, int64(n)*int64(min(c.roundTrip, aheadFor))/int64(longest))
	return int(cover - c.ahead.waiting.Load())
}

// claimAhead claims jobs ahead while no slot is free: when half of the earlier ones are used up, in a pod whose slots no other lane waits
// for; or more urgent ones than those that wait, after news of some.
func (c *claimer) claimAhead(ctx context.Context, news bool) error {
	kinds, longest := c.shortKinds()
	if len(kinds) == 0 {
		return nil
	}
	var wants []store.Want
	if lanes := c.Lanes.Names(); c.ahead.refill.Swap(false) && !c.dry && len(lanes) == 1 {
		w := store.Want{Lane: lanes[0], Ahead: c.wantsAhead(lanes[0], longest)}
		c.Marks.ForClaim(&w)
		if w.After == nil && w.Above == nil && w.Ahead > 0 {
			wants = append(wants, w)
		}
	}
	refill := len(wants) > 0
	if !refill && news {
		for lane, rank := range c.ahead.ranks() {
			if n := c.Lanes.UnsharedSlots(lane); n > 0 && rank > -job.MaxPriority {
				wants = append(wants, store.Want{Lane: lane, Ahead: n, Above: &rank})
			}
		}
	}
	if len(wants) == 0 {
		return nil
	}
	found, err := c.send(ctx, wants, kinds, nil)
	c.dry = refill && len(found.Jobs) < wants[0].Ahead
	return err
}
