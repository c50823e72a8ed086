package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// compareSoon asks for a comparison.
func (r *engine) compareSoon() {
	r.comparing.Set()
}

// compare compares after each request, until ctx ends. It has a goroutine of its own: a heartbeat never waits for a table of jobs.
func (r *engine) compare(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.comparing:
		}
		if err := r.cancelMissing(ctx); err != nil {
			r.log.DebugContext(ctx, "handlers could not be compared with the table, the next heartbeat tries again", telemetry.Err, r.dbError(err))
			continue
		}
		r.member.ClaimsCompared(ctx)
	}
}

// cancelMissing cancels the handlers whose claims are missing in the table. It asks about claims whose commit was confirmed before, and
// leaves out those whose end may have been written since.
func (r *engine) cancelMissing(ctx context.Context) error {
	boot := r.boot()
	var asked []job.Lease
	r.runs.each(func(one *run) {
		if one.Lease.Pod == boot && one.mustBeHeld() {
			asked = append(asked, one.Lease)
		}
	})
	if len(asked) == 0 {
		return nil
	}
	missing, err := store.MissingClaims(ctx, r.store, boot, asked)
	if err != nil {
		return err
	}
	var lost []*run
	var ids []int64
	for _, m := range missing {
		one := r.runs.find(m.ID, m.Fence)
		switch {
		case one == nil || !one.mustBeHeld():
		case m.Reason == job.ReasonStopped || m.Reason == job.ReasonDeadline:
			r.cancelRun(one, m.Reason) // ended by a command since the heartbeat
		case r.member.ClaimMissing(one):
		default:
			lost, ids = append(lost, one), append(ids, m.ID)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	gone, err := r.store.Gone(ctx, ids...)
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
	r.log.WarnContext(ctx, "handlers cancelled whose claims are missing in the table: the jobs were deleted, or the server has lost its latest commits",
		telemetry.Pod, r.opts.Name, telemetry.JobIDs, ids)
	return nil
}

// mustBeHeld reports whether the table gives the claim to this process unless it was lost: its handler has not returned.
func (one *run) mustBeHeld() bool { return !one.settled.Load() && !one.isLost() }

// knows adds the claims that this process works on, or that a statement under way may make its own.
func (r *engine) knows(known map[job.Lease]bool) {
	boot := r.boot()
	for _, id := range r.flights.list() {
		known[job.Lease{JobID: id, Fence: 1, Pod: boot}] = true
	}
	r.runs.each(func(one *run) { known[one.Lease] = true })
}
