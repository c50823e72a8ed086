package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// compareSoon asks for a comparison.
func (r *Engine) compareSoon() {
	r.comparing.Set()
}

// compare compares after each request, until ctx ends. It has a goroutine of its own: a heartbeat never waits for a table of jobs.
func (r *Engine) compare(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.comparing:
		}
		if err := r.cancelMissing(ctx); err != nil {
			r.Log.DebugContext(ctx, "handlers could not be compared with the table, the next heartbeat tries again", telemetry.Err, r.DBError(err))
			continue
		}
		r.Member.ClaimsCompared(ctx)
	}
}

// cancelMissing cancels the handlers whose claims are missing in the table. It asks about claims whose commit was confirmed before, and
// leaves out those whose end may have been written since.
func (r *Engine) cancelMissing(ctx context.Context) error {
	boot := r.Boot()
	var asked []job.Lease
	r.Runs.Each(func(one *Run) {
		if one.Lease.Pod == boot && one.mustBeHeld() {
			asked = append(asked, one.Lease)
		}
	})
	if len(asked) == 0 {
		return nil
	}
	missing, err := store.MissingClaims(ctx, r.Store, boot, asked)
	if err != nil {
		return err
	}
	var lost []*Run
	var ids []int64
	for _, m := range missing {
		one := r.Runs.Find(m.ID, m.Fence)
		switch {
		case one == nil || !one.mustBeHeld():
		case m.Reason == job.ReasonStopped || m.Reason == job.ReasonDeadline:
			r.cancelRun(one, m.Reason) // ended by a command since the heartbeat
		case r.Member.ClaimMissing(one):
		default:
			lost, ids = append(lost, one), append(ids, m.ID)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	gone, err := r.Store.Gone(ctx, ids...)
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
	r.Log.WarnContext(ctx, "handlers cancelled whose claims are missing in the table: the jobs were deleted, or the server has lost its latest commits",
		telemetry.Pod, r.Opts.Name, telemetry.JobIDs, ids)
	return nil
}

// mustBeHeld reports whether the table gives the claim to this process unless it was lost: its handler has not returned.
func (one *Run) mustBeHeld() bool { return !one.Settled.Load() && !one.IsLost() }

// knows adds the claims that this process works on, or that a statement under way may make its own.
func (r *Engine) AddKnown(known map[job.Lease]bool) {
	boot := r.Boot()
	for _, id := range r.flights.list() {
		known[job.Lease{JobID: id, Fence: 1, Pod: boot}] = true
	}
	r.Runs.Each(func(one *Run) { known[one.Lease] = true })
}
