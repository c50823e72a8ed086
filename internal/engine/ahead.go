package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// If a kind's handlers return in less time than a claim takes, a claim fetches more jobs than there are free slots. The extra jobs are
// claimed ahead of time and wait in memory for a slot. As soon as a handler returns, its slot passes to the next waiting job, and its
// result is written in the background.
//
// In the table, a waiting job is running but not started. If the pod crashes, recovery therefore returns the job without counting a crash,
// and the job is never claimed ahead of time again. See ADR 0041. Package poller decides how many jobs to claim.

// passedPerSlot is the maximum number of completions per slot that may be in progress after passing on their slots.
const passedPerSlot = 40

// nextAhead starts the first job claimed ahead of time for which the slot function obtains a slot in the job's lane. It returns the job's
// run, or nil if there is none.
func (x *executor) nextAhead(slot func(lane string) bool) *Run {
	if x.Closing.Load() || !x.Lease.Trusted() {
		return nil
	}
	c := x.Ahead.Take(slot)
	if c == nil {
		return nil
	}
	defer x.Ahead.Done(c)
	x.Refill()
	c.ClaimedAt = c.ClaimedAt.Add(time.Since(c.Since)) // the handler starts now
	x.observeWait(c.Claimed)
	run := x.NewRun(c.Claimed, c.Lease.Pod)
	if run == nil {
		x.Lanes.Release(c.Lane, 1)
		x.Unknown.Raise()
	}
	return run
}

// passSlot passes a run's slot to the next job that was claimed ahead of time, and returns that job's run, or nil if no job can take the
// slot. It is called after the handler has returned and before its result is written.
func (x *executor) passSlot(run *Run) *Run {
	from := run.Claimed.Lane
	if !x.Ahead.Any() || x.passed.Load() >= int64(passedPerSlot*x.Slots()) || x.Lanes.UnsharedSlots(from) == 0 {
		return nil
	}
	next := x.nextAhead(func(lane string) bool { return x.Lanes.Step(from, lane) })
	if next != nil {
		x.Lanes.Stepped(from, next.Claimed.Lane, true)
		x.passed.Add(1)
		run.ahead.passed = true
	}
	return next
}

// FillSlots fills free slots with jobs that were claimed ahead of time.
func (x *executor) FillSlots() {
	for next := x.nextAhead(x.Lanes.Reserve); next != nil; next = x.nextAhead(x.Lanes.Reserve) {
		x.workers.Give(next)
	}
}

// expireAhead returns jobs claimed ahead of time to their lanes once they have waited too long for a slot. It runs until ctx ends.
func (x *executor) expireAhead(ctx context.Context) {
	for {
		var expired <-chan time.Time
		if since := x.Ahead.Oldest(); !since.IsZero() {
			expired = time.After(max(time.Until(since.Add(slots.AheadFor)), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return
		case <-x.Ahead.Added:
		case <-expired:
			x.returnAhead(ctx, x.Ahead.RemoveOld())
		}
	}
}

// returnAhead returns removed claims' jobs to their lanes without counting an attempt.
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
	back, err := x.Store.HandBack(ctx, x.PodID(), leases, "claimed ahead: no slot became free")
	if err != nil || len(back) < len(removed) {
		x.Unknown.Raise() // the reply was lost, or some of the jobs have a cancel request
	}
	x.Ahead.Done(removed...)
	x.Log.DebugContext(ctx, "claims ahead returned", telemetry.Jobs, len(back), telemetry.Err, x.DBError(err))
	x.WakeAll()
}
