package engine

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// smallPod is the largest number of slots for which a claim first waits for in-flight completions to free their slots. With 100 slots, the
// wait would slow down draining a queue by a fifth.
const smallPod = flushBeside

// claimer claims due jobs for the free slots of the lanes.
type claimer struct {
	*Identity
	exec *executor

	heard     atomic.Bool    // other pods may have changed the number of available slots in limited lanes
	asksAgain atomic.Bool    // a claim is scheduled for slots whose request was postponed
	renewing  sync.WaitGroup // waits for reads of expired marks

	mu        sync.Mutex // locked during a claim; guards the following fields
	round     round
	claimedAt time.Time     // when a claim last covered all lanes
	roundTrip time.Duration // moving average over the latest claims
	dry       bool          // the latest refill of the jobs claimed ahead of time found fewer jobs than requested
}

// claimDue claims due jobs for every free slot and starts them. It reports whether another claim is likely to find more right away.
//
// If nothing has changed except that some subjects' runs have ended, claimDue claims only the next job for each of these subjects. With
// many jobs waiting for the same subject, every full claim would have to skip all of them. The changed argument reports whether there has
// been any other change.
func (c *claimer) claimDue(ctx context.Context, changed bool) (more bool, err error) {
	if len(c.HandledKinds) == 0 || c.Closing.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := c.freed.take()
	if len(keys) > 0 {
		all, err := c.claimSubjects(ctx, keys)
		if err != nil {
			for _, k := range keys {
				c.freed.add(k)
			}
			return false, err
		}
		if all && !changed && !c.backlog.hasMore() && time.Since(c.claimedAt) < c.Opts.PollEvery {
			return false, nil
		}
	}
	c.claimedAt = time.Now()
	news := c.news.Swap(false)
	if c.Slots() <= smallPod && !c.ahead.Any() {
		c.exec.finisher.flusher.lands() // the claim also fills the slots that these completions free
	}
	if err := c.settleSlots(ctx); err != nil {
		return false, err
	}
	c.renewMarks(ctx)
	c.backlog.claimBegins()
	if !c.round.open || changed || len(keys) > 0 {
		c.round = round{since: time.Now()}
	}
	left := true // assume that jobs are left until the claim shows otherwise
	defer func() {
		if c.backlog.claimEnded(left) {
			c.wakeForSlot()
		}
		if err == nil && !more {
			if next, ok := c.turns.Claimed(left); ok {
				c.Member.PassOn(next)
			}
		}
	}()
	c.exec.fillSlots()
	wants, unasked := c.Lanes.Wants(c.round.since)
	c.round.open = false
	c.round.asked += len(wants)
	if len(wants) == 0 {
		return false, c.claimAhead(ctx, news)
	}
	short, longest := c.shortKinds()
	reserved := map[string]int{}
	c.dry = false
	for i := range wants {
		w := &wants[i]
		reserved[w.Lane] = w.N
		c.Marks.ForClaim(w)
		if w.After == nil && w.Above == nil { // a sweep claims nothing ahead of time, because it resumes after the last job that it claimed
			w.Ahead = c.ahead.Wants(c.Lanes.UnsharedSlots(w.Lane), longest, c.roundTrip) / len(wants)
		}
	}
	defer func() {
		for lane, n := range reserved {
			c.Lanes.Release(lane, n)
		}
	}()
	found, err := c.send(ctx, wants, short, reserved)
	if err != nil {
		return false, err
	}
	quick := !slots.Slow(found.Took, len(found.Jobs))
	most, wake := c.Member.MarkLimit()
	sweeping := c.Marks.Claimed(wants, found, quick, most, wake)
	c.Lanes.ReturnIdle(found.Exhausted()...)
	if !quick && !sweeping {
		c.findMarks(ctx, lanesOf(wants)...)
	}
	filled := false
	for _, w := range wants {
		filled = filled || reserved[w.Lane] == 0
	}
	left = filled || sweeping || found.Seen > len(found.Jobs) || !c.Lanes.Covers(c.round.asked)
	// If any slots are left, another claim may find more jobs if a lane's share was filled, jobs were skipped, or a lane was not read to
	// its end.
	again := filled || sweeping || len(found.Jobs) > 0 && found.Seen > len(found.Jobs)
	if again || unasked == 0 {
		return again && c.Lanes.AnyFree(reserved), nil
	}
	c.round.open = c.Lanes.AnyFree(reserved)
	return c.round.open, nil
}

// send sends a claim, and starts the handlers of jobs for which slots are reserved. Jobs of the kinds in short may also be claimed ahead of
// time.
func (c *claimer) send(ctx context.Context, wants []store.Want, short []string, reserved map[string]int) (store.Claims, error) {
	podID, began := c.PodID(), time.Now()
	_ = failpoint.Hit(failpoint.ClaimSend)
	// Once a claim has been sent, wait for its reply, but only briefly if the pod is stopping.
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	found, err := c.Store.ClaimAhead(asking, podID, wants, c.HandledKinds, short, !c.Runs.isolated())
	if err != nil {
		if store.Unknown(err) {
			c.Unknown.Raise()
		}
		return found, err
	}
	took := time.Since(began)
	c.roundTrip = cmp.Or(c.roundTrip, took)
	c.roundTrip += (took - c.roundTrip) / 8
	c.exec.LaunchClaims(podID, found, reserved)
	return found, nil
}

// LaunchClaims starts the handlers of claimed jobs once the claim's commit has been confirmed. Jobs claimed ahead of time wait until slots
// are free.
func (x *executor) LaunchClaims(podID string, found store.Claims, reserved map[string]int) {
	_ = failpoint.Hit(failpoint.ClaimCommitted)
	x.Metrics.Claims.Add(float64(len(found.Jobs)))
	claims := make([]*Run, 0, len(found.Jobs))
	var waiting []*slots.Claim
	for _, c := range found.Jobs {
		if c.Ahead {
			waiting = append(waiting, &slots.Claim{Claimed: c, Lease: job.Lease{JobID: c.ID, Fence: c.Fence, Pod: podID}, Since: time.Now()})
			continue
		}
		x.observeWait(c)
		run := x.NewRun(c, podID)
		if run == nil {
			x.Unknown.Raise()
			continue
		}
		claims = append(claims, run)
		reserved[c.Lane]--
		x.Lanes.Touch(c.Lane)
	}
	if len(waiting) > 0 {
		x.ahead.Put(waiting)
		for run := x.nextAhead(spare(reserved)); run != nil; run = x.nextAhead(spare(reserved)) {
			claims = append(claims, run)
		}
	}
	x.workers.Give(claims...)
	x.fillSlots() // slots may have become free since the claim was sent
}

// spare returns a function that takes one of the slots that a claim reserved but did not use.
func spare(reserved map[string]int) func(lane string) bool {
	return func(lane string) bool {
		if reserved[lane] <= 0 {
			return false
		}
		reserved[lane]--
		return true
	}
}

// claimSubjects claims the next job for each given subject, whose runs have just ended. It reports whether it found a job for every
// subject.
func (c *claimer) claimSubjects(ctx context.Context, keys []store.Key) (all bool, err error) {
	lanes := c.Lanes.Open()
	var asked []store.Key
	for _, k := range keys {
		if c.Handled[k.Kind] {
			asked = append(asked, k)
		}
	}
	if len(lanes) == 0 || len(asked) == 0 {
		return false, nil
	}
	// The jobs' lanes are not known until the claim returns, so reserve slots in every lane that the jobs may be in.
	reserved := map[string]int{}
	defer func() {
		for lane, n := range reserved {
			c.Lanes.Release(lane, n)
		}
	}()
	var open []string
	for _, lane := range lanes {
		for range asked {
			if !c.Lanes.Reserve(lane) {
				break
			}
			reserved[lane]++
		}
		if reserved[lane] > 0 {
			open = append(open, lane)
		}
	}
	if len(open) == 0 {
		return false, nil
	}
	least := len(asked)
	for _, lane := range open {
		least = min(least, reserved[lane])
	}
	for _, k := range asked[least:] {
		c.freed.add(k) // the next sweep claims it
	}
	podID := c.PodID()
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	found, err := c.Store.ClaimSubjects(asking, podID, asked[:least], open)
	if err != nil {
		if store.Unknown(err) {
			c.Unknown.Raise()
		}
		return false, err
	}
	c.exec.LaunchClaims(podID, found, reserved)
	return len(found.Jobs) == len(keys), nil
}
