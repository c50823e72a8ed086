package engine

import (
	"context"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// compareSoon requests a comparison of this process's claims with the table.
func (e *Engine) compareSoon() {
	e.comparing.Set()
}

// compare compares this process's claims with the table on request, until ctx ends. It runs on a separate goroutine, because a heartbeat
// must never wait for the job tables.
func (e *Engine) compare(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.comparing:
		}
		if err := e.noteStarted(ctx); err != nil {
			e.Log.DebugContext(ctx, "could not record the starts of claims ahead, retrying with the next heartbeat", telemetry.Err, e.DBError(err))
		}
		if err := e.cancelMissing(ctx); err != nil {
			e.Log.DebugContext(ctx, "could not compare handlers with the table, retrying with the next heartbeat", telemetry.Err, e.DBError(err))
			continue
		}
		e.Member.ClaimsCompared(ctx)
	}
}

// noteStarted stores the start times of jobs that were claimed ahead of time and had already started at the previous comparison.
func (e *Engine) noteStarted(ctx context.Context) error {
	boot := e.Boot()
	var claims []job.Lease
	var started []time.Time
	e.Runs.Each(func(one *Run) {
		if !one.Claimed.Ahead || one.ahead.noted || one.Lease.Pod != boot || !one.mustBeHeld() {
			return
		}
		if one.ahead.compared {
			claims, started = append(claims, one.Lease), append(started, one.Claimed.ClaimedAt)
		}
		one.ahead.compared = true
	})
	if len(claims) == 0 {
		return nil
	}
	noted, err := store.NoteStarted(ctx, e.Store, boot, claims, started)
	for _, c := range claims {
		if one := e.Runs.Find(c.JobID, c.Fence); one != nil && slices.Contains(noted, c.JobID) {
			one.ahead.noted = true
		}
	}
	return err
}

// cancelMissing cancels the handlers of claims that are missing from the table. It checks only claims whose commit has been confirmed, and
// ignores those that may have finished in the meantime.
func (e *Engine) cancelMissing(ctx context.Context) error {
	boot := e.Boot()
	var asked []job.Lease
	e.Runs.Each(func(one *Run) {
		if one.Lease.Pod == boot && one.mustBeHeld() {
			asked = append(asked, one.Lease)
		}
	})
	if len(asked) == 0 {
		return nil
	}
	missing, err := store.MissingClaims(ctx, e.Store, boot, asked)
	if err != nil {
		return err
	}
	var lost []*Run
	var ids []int64
	for _, m := range missing {
		one := e.Runs.Find(m.ID, m.Fence)
		switch {
		case one == nil || !one.mustBeHeld():
		case m.Reason == job.ReasonStopped || m.Reason == job.ReasonDeadline:
			one.cancelFor(m.Reason) // a command has finished the job since the heartbeat
		case e.Member.ClaimMissing(one):
		default:
			lost, ids = append(lost, one), append(ids, m.ID)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	gone, err := e.Store.Gone(ctx, ids...)
	if err != nil {
		return err
	}
	for _, one := range lost {
		if gone[one.Lease.JobID] {
			one.lose(job.ErrGone)
		} else {
			one.lose(job.ErrLeaseLost)
		}
	}
	e.Log.WarnContext(ctx, "cancelled handlers without a claim in the table: the jobs were deleted, or the server lost its latest commits",
		telemetry.Pod, e.Opts.Name, telemetry.JobIDs, ids)
	return nil
}
