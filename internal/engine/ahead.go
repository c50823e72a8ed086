package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// When the handlers of a kind return faster than a claim takes, a claim fetches more jobs than there are free slots. These jobs are claimed
// ahead of time: they wait in memory for a slot. A handler that returns immediately passes its slot to the next of these jobs, and its
// result is written in the background.
//
// In the table, such a job is running but not started. If the pod crashes, recovery therefore returns the job without counting a crash, and
// the job is never claimed ahead of time again. See ADR 0041. claim_ahead.go decides which jobs to claim.

// passedPerSlot is the maximum number of completions, per slot, that can still be in progress after their slots were passed on.
const passedPerSlot = 10

// nextAhead starts the next job that was claimed ahead of time and can get a slot in its lane. It returns the job's run, or nil if there is
// none.
func (x *executor) nextAhead(slot func(lane string) bool) *Run {
	if x.Closing.Load() || !x.Lease.Trusted() {
		return nil
	}
	c := x.ahead.Take(slot)
	if c == nil {
		return nil
	}
	defer x.ahead.Done(c)
	if x.ahead.Low() && x.backlog.hasMore() {
		x.Poller.Wake()
	}
	c.ClaimedAt = c.ClaimedAt.Add(time.Since(c.Since)) // the handler starts now
	x.observeWait(&c.Claimed)
	one := x.NewRun(c.Claimed, c.Lease.Pod)
	if one == nil {
		x.Lanes.Release(c.Lane, 1)
		x.Unknown.Raise()
	}
	return one
}

// passSlot passes the slot of a run to the next job that was claimed ahead of time, and returns that job's run. It is called after the
// handler has returned but before its result has been written.
func (x *executor) passSlot(one *Run) *Run {
	from := one.Claimed.Lane
	if !x.ahead.Any() || x.passed.Load() >= int64(passedPerSlot*x.Slots()) || x.Lanes.UnsharedSlots(from) == 0 {
		return nil
	}
	next := x.nextAhead(func(lane string) bool { return x.Lanes.Step(from, lane) })
	if next != nil {
		x.Lanes.Stepped(from, next.Claimed.Lane, true)
		x.passed.Add(1)
		one.ahead.passed = true
	}
	return next
}

// fillSlots fills free slots with jobs that were claimed ahead of time.
func (x *executor) fillSlots() {
	for next := x.nextAhead(x.Lanes.Reserve); next != nil; next = x.nextAhead(x.Lanes.Reserve) {
		x.workers.Give(next)
	}
}

// expireAhead returns jobs that were claimed ahead of time and have waited too long for a slot. It runs until ctx ends.
func (x *executor) expireAhead(ctx context.Context) {
	for {
		var expired <-chan time.Time
		if since := x.ahead.Oldest(); !since.IsZero() {
			expired = time.After(max(time.Until(since.Add(slots.AheadFor)), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return
		case <-x.ahead.Added:
		case <-expired:
			x.returnAhead(ctx, x.ahead.RemoveOld())
		}
	}
}

// returnAhead returns removed claims to their lanes without spending an attempt.
func (x *executor) returnAhead(ctx context.Context, removed []*slots.Claim) {
	if len(removed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	leases, waiting := make([]job.Lease, len(removed)), make([]store.Claimable, len(removed))
	for i, c := range removed {
		leases[i], waiting[i] = c.Lease, store.Claimable{Lane: c.Lane, Kind: c.Kind, Jobs: 1}
	}
	back, err := x.Store.HandBack(ctx, x.Boot(), leases, "claimed ahead: no slot became free")
	if err != nil || len(back) < len(removed) {
		x.Unknown.Raise() // a reply was lost, or some of the jobs have a cancel request
	}
	x.ahead.Done(removed...)
	x.Log.DebugContext(ctx, "claims ahead returned", telemetry.Jobs, len(back), telemetry.Err, x.DBError(err))
	x.wakeFor(waiting...)
}
