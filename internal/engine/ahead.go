package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Claims ahead: while the handlers of a kind return sooner than a claim takes, a claim takes more jobs than slots are free, and each waits in
// memory for a slot. A handler that returns gives its slot to the next of them at once, and its end is written meanwhile. The table has the
// job as running and not started, so that the crash of a pod does not count against a job that may only have waited: recovery returns it
// unspent, and no later claim of it is ahead. See ADR 0041. claim_ahead.go decides what to claim.

// passedPerSlot is the largest number of ends, for each slot, that are written while their slots have gone on.
const passedPerSlot = 10

// nextAhead starts the next claim ahead whose lane gives it a slot, and returns its run; nil: there is none.
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
	c.ClaimedAt = c.ClaimedAt.Add(time.Since(c.Since)) // its handler starts now
	x.observeWait(&c.Claimed)
	one := x.NewRun(c.Claimed, c.Lease.Pod)
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

// fillSlots starts claims ahead in the slots that are free.
func (x *executor) fillSlots() {
	for next := x.nextAhead(x.Lanes.Reserve); next != nil; next = x.nextAhead(x.Lanes.Reserve) {
		x.workers.Give(next)
	}
}

// expireAhead returns claims that have waited for too long for a slot, until ctx ends.
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

// returnAhead returns removed claims to their lanes, unspent.
func (x *executor) returnAhead(ctx context.Context, removed []*slots.Claim) {
	if len(removed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	leases := make([]job.Lease, len(removed))
	for i, c := range removed {
		leases[i] = c.Lease
	}
	back, err := x.Store.HandBack(ctx, x.Boot(), leases, "claimed ahead: no slot came free")
	if err != nil || len(back) < len(removed) {
		x.Unknown.Raise() // a reply was lost, or some are to be cancelled
	}
	x.ahead.Done(removed...)
	x.Log.DebugContext(ctx, "claims ahead returned", telemetry.Jobs, len(back), telemetry.Err, x.DBError(err))
	x.wakeAll()
}
