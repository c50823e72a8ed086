package engine

import (
	"context"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

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
	podID := e.PodID()
	var claims []job.Lease
	var started []time.Time
	e.Runs.Each(func(run *Run) {
		if !run.Claimed.Ahead || run.ahead.noted || run.Lease.Pod != podID || !run.mustBeHeld() {
			return
		}
		if run.ahead.compared {
			claims, started = append(claims, run.Lease), append(started, run.Claimed.ClaimedAt)
		}
		run.ahead.compared = true
	})
	if len(claims) == 0 {
		return nil
	}
	noted, err := store.NoteStarted(ctx, e.Store, podID, claims, started)
	for _, c := range claims {
		if run := e.Runs.Find(c.JobID, c.Fence); run != nil && slices.Contains(noted, c.JobID) {
			run.ahead.noted = true
		}
	}
	return err
}

// cancelMissing cancels the handlers of claims that are missing from the table. It checks only claims whose commit has been confirmed, and
// ignores those that may have finished in the meantime.
func (e *Engine) cancelMissing(ctx context.Context) error {
	podID := e.PodID()
	var asked []job.Lease
	e.Runs.Each(func(run *Run) {
		if run.Lease.Pod == podID && run.mustBeHeld() {
			asked = append(asked, run.Lease)
		}
	})
	if len(asked) == 0 {
		return nil
	}
	missing, err := store.MissingClaims(ctx, e.Store, podID, asked)
	if err != nil {
		return err
	}
	var lost []int64
	for _, m := range missing {
		run := e.Runs.Find(m.ID, m.Fence)
		switch {
		case run == nil || !run.mustBeHeld():
			continue
		case m.Reason == job.ReasonForceCancelled || m.Reason == job.ReasonDeadline:
			run.cancelFor(m.Reason) // a command has finished the job since the heartbeat
			continue
		case e.Member.ClaimMissing(run):
			continue
		case m.Deleted:
			run.lose(job.ErrGone)
		default:
			run.lose(job.ErrLeaseLost)
		}
		lost = append(lost, m.ID)
	}
	if len(lost) > 0 {
		e.Log.WarnContext(ctx, "cancelled handlers without a claim in the table: the jobs were deleted, or the server lost its latest commits",
			telemetry.Pod, e.Opts.Name, telemetry.JobIDs, lost)
	}
	return nil
}
