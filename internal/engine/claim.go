package engine

import (
	"cmp"
	"context"
	"sync"
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

	renewing sync.WaitGroup // waits for reads of expired marks

	mu        sync.Mutex // locked during a claim; guards the following fields
	round     round
	roundTrip time.Duration // moving average over the latest claims
	dry       bool          // the latest refill of the jobs claimed ahead of time found fewer jobs than requested
}

// claimDue claims due jobs for every free slot and starts them. It reports whether another claim is likely to find more right away. The
// changed argument reports whether more jobs may have become pending since the latest claim.
func (c *claimer) claimDue(ctx context.Context, changed bool) (more bool, err error) {
	if len(c.HandledKinds) == 0 || c.Closing.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.news.Swap(false)
	if c.Slots() <= smallPod && !c.ahead.Any() {
		c.exec.finisher.flusher.lands() // the claim also fills the slots that these completions free
	}
	if err := c.settleSlots(ctx, news); err != nil {
		return false, err
	}
	c.renewMarks(ctx)
	c.backlog.claimBegins()
	if !c.round.open || changed {
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
		w.Ahead = c.ahead.Wants(c.Lanes.UnsharedSlots(w.Lane), longest, c.roundTrip) / len(wants)
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
	filled := false
	var exhausted []string
	for _, w := range wants {
		if found.In(w.Lane) < w.N {
			exhausted = append(exhausted, w.Lane)
		}
		filled = filled || reserved[w.Lane] == 0
	}
	if c.Lanes.Claimed(reserved, exhausted...) {
		c.wakeForSlot()
	}
	left = filled || !c.Lanes.Covers(c.round.asked)
	if filled || unasked == 0 {
		return filled && c.Lanes.AnyFree(reserved), nil
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
	for i := range wants {
		if wants[i].Marks = c.Marks.ForClaim(wants[i].Lane); wants[i].Marks != nil {
			wants[i].Ahead = 0 // the search for them would read what lies before the marks
		}
	}
	found, err := c.Store.Claim(asking, podID, wants, c.HandledKinds, short, !c.Runs.isolated())
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
	if lanes := lanesOf(wants); slots.Slow(found.Took, len(found.Jobs)) {
		c.findMarks(ctx, lanes...)
	} else {
		c.Marks.Prune(lanes...)
	}
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
