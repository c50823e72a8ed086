package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Cancelled is what a command came to: the state in which the job is now.
type Cancelled struct {
	State job.State // cancelled, or running while its handler is being told
}

// Cancel ends a job: one that does not run at once, a running one by cancelling its handler's context, on whichever pod.
// It ends cancelled whatever the handler then returns. Errors: [job.ErrNotFound], [job.ErrAlreadyTerminal]; and
// [job.ErrOutcomeUnknown] when the connection was lost before the answer: asking again is safe, and tells.
func (a Admin) Cancel(ctx context.Context, id int64, actor string) (Cancelled, error) {
	return a.end(ctx, id, false, actor)
}

// Stop ends a job at once, also a running one: its handler's later result is refused, its context cancelled. Errors as of
// [Admin.Cancel].
func (a Admin) Stop(ctx context.Context, id int64, actor string) (Cancelled, error) {
	return a.end(ctx, id, true, actor)
}

func (a Admin) end(ctx context.Context, id int64, stop bool, actor string) (Cancelled, error) {
	c, err := a.endOne(ctx, id, stop, actor)
	if err == nil {
		// Its branches are cancelled with it; or it was the last branch that somebody waited for. Otherwise a heartbeat tells.
		if err := a.r.balanceAround(ctx); err != nil {
			a.r.log.WarnContext(ctx, "the fan-outs of a cancelled job could not be balanced yet", telemetry.JobID, id, telemetry.Err, a.r.dbError(err))
		}
	}
	return c, err
}

func (a Admin) endOne(ctx context.Context, id int64, stop bool, actor string) (Cancelled, error) {
	why := job.ReasonCancelled
	if stop {
		why = job.ReasonStopped
	}
	c, err := admin.Cancel(ctx, a.r.front, id, stop, named(actor), a.r.tellRun)
	return a.r.ended(id, c, why, err)
}

// cancelAmong cancels one of many jobs that a command is for.
func (r *engine) cancelAmong(ctx context.Context, id int64, actor string) (Cancelled, error) {
	c, err := admin.CancelAmong(ctx, r.front, id, actor, r.tellRun)
	return r.ended(id, c, job.ReasonCancelled, err)
}

// ended tells whoever is concerned what a cancel or stop came to.
func (r *engine) ended(id int64, c admin.Cancellation, why job.Reason, err error) (Cancelled, error) {
	if store.Unknown(err) {
		return Cancelled{}, r.commandError(err)
	}
	if err != nil {
		return Cancelled{State: c.State}, r.dbError(err)
	}
	if c.EndedKind != "" {
		r.count.ends.count(job.Cancelled, "", c.EndedKind)
	}
	if c.Pod != nil {
		r.member.cancel(job.Lease{JobID: id, Fence: c.Fence, Pod: *c.Pod}, why) // another pod learns it by its heartbeat
		r.wake()
	}
	r.waiters.seen(id)
	return Cancelled{State: c.State}, nil
}

// tellRun ends the handler of a run of ours whose row a transaction holds: it ends with the handler's context.
func (r *engine) tellRun(l job.Lease) {
	if one := r.runs.find(l.JobID, l.Fence); one != nil && one.Lease == l {
		r.cancelRun(one, job.ReasonCancelled)
	}
}

// Approve lets a job go that awaits approval: it is due at once, or when its own delay is over. Errors: [job.ErrNotFound],
// [job.ErrNotAwaitingApproval], also when it was approved before; and [job.ErrOutcomeUnknown] when the connection was lost
// before the answer: asking again is safe, and tells.
func (a Admin) Approve(ctx context.Context, id int64, actor string) error {
	if err := admin.Approve(ctx, a.r.front, id, named(actor)); err != nil {
		return a.r.commandError(err)
	}
	a.r.wake()
	a.r.wakePeers()
	return nil
}

// Get reads one job: [job.ErrNotFound] when there is none.
func (r *Runner) Get(ctx context.Context, id int64) (job.Job, error) {
	return view.Job(ctx, r.front, id)
}

// Events lists a job's events after the one of that number, oldest first: an event's number is its EventNo, 0 lists from the first.
func (a Admin) Events(ctx context.Context, id int64, after, limit int) ([]job.Event, error) {
	return view.JobEvents(ctx, a.r.front, id, after, limit)
}
