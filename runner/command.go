package runner

import (
	"context"

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
	why := job.ReasonCancelled
	if stop {
		why = job.ReasonStopped
	}
	c, err := admin.Cancel(ctx, a.pod.Commands, id, stop, named(actor), a.pod.TellRun)
	state, err := a.pod.ApplyCancel(id, c, why, err)
	if err != nil {
		return Cancelled{State: state}, err
	}
	// Its children are cancelled with it, or it was the last child that its parent waited for. Otherwise the next heartbeat settles them.
	if err := a.pod.SettleFanOuts(ctx); err != nil {
		a.pod.Log.WarnContext(ctx, "fan-outs of a cancelled job not settled yet", telemetry.JobID, id, telemetry.Err, a.pod.DBError(err))
	}
	return Cancelled{State: state}, nil
}

// Approve lets a job go that awaits approval: it is due at once, or when its own delay is over. Errors: [job.ErrNotFound],
// [job.ErrNotAwaitingApproval], also when it was approved before; and [job.ErrOutcomeUnknown] when the connection was lost
// before the answer: asking again is safe, and tells.
func (a Admin) Approve(ctx context.Context, id int64, actor string) error {
	if err := admin.Approve(ctx, a.pod.Commands, id, named(actor)); err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.Wake()
	a.pod.WakePeers()
	return nil
}

// Job reads one job: [job.ErrNotFound] when there is none.
func (r *Runner) Job(ctx context.Context, id int64) (job.Job, error) {
	return view.Job(ctx, r.pod.Commands, id)
}

// Events lists a job's events after the one of that number, oldest first: an event's number is its EventNo, 0 lists from the first.
func (a Admin) Events(ctx context.Context, id int64, after, limit int) ([]job.Event, error) {
	return view.JobEvents(ctx, a.pod.Commands, id, after, limit)
}
