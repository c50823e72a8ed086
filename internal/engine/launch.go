package engine

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// This file implements [poller.Engine].

// smallPod is the largest number of slots for which a claim first waits for in-flight completions to free their slots. With 100 slots, the
// wait would slow down draining a queue by a fifth.
const smallPod = flushBeside

// AwaitEnds implements [poller.Engine].
func (x *executor) AwaitEnds() {
	if x.Slots() <= smallPod && !x.Ahead.Any() {
		x.flusher.lands()
	}
}

// RunsIsolated implements [poller.Engine].
func (x *executor) RunsIsolated() bool { return x.Runs.isolated() }

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
		x.Ahead.Put(waiting)
		for run := x.nextAhead(spare(reserved)); run != nil; run = x.nextAhead(spare(reserved)) {
			claims = append(claims, run)
		}
	}
	x.workers.Give(claims...)
	x.FillSlots() // slots may have become free since the claim was sent
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
