package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Cancelled is the result of [Admin.Cancel] and [Admin.Stop]: the job's state now.
type Cancelled struct {
	State job.State // cancelled, or running until its handler returns
}

// Cancel cancels a job. A job that is not running ends at once. For a running job, Cancel cancels the handler's context, on any pod, and
// the job ends as cancelled regardless of the handler's return. Errors: [job.ErrNotFound], [job.ErrAlreadyTerminal]; and
// [job.ErrOutcomeUnknown] when the connection was lost before the reply. Repeating the call is safe and returns the outcome.
func (a Admin) Cancel(ctx context.Context, id int64, actor string) (Cancelled, error) {
	return a.end(ctx, id, false, actor)
}

// Stop ends a job at once, even a running one: its handler's context is cancelled and a later result is rejected. Errors: as for
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
	// Its children are cancelled with it, or it was the last child that its parent waited for. If this fails, the next heartbeat settles
	// them.
	if err := a.pod.SettleFanOuts(ctx); err != nil {
		a.pod.Log.WarnContext(ctx, "fan-outs of a cancelled job not settled yet", telemetry.JobID, id, telemetry.Err, a.pod.DBError(err))
	}
	return Cancelled{State: state}, nil
}

// Approve releases a job that awaits approval: it is due at once, or when its delay is over. Errors: [job.ErrNotFound];
// [job.ErrNotAwaitingApproval], also if it was approved before; and [job.ErrOutcomeUnknown] when the connection was lost before the
// reply. Repeating the call is safe and returns the outcome.
func (a Admin) Approve(ctx context.Context, id int64, actor string) error {
	if err := admin.Approve(ctx, a.pod.Commands, id, named(actor)); err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.Wake()
	a.pod.WakePeers()
	return nil
}

// Job returns one job, or [job.ErrNotFound].
func (r *Runner) Job(ctx context.Context, id int64) (job.Job, error) {
	return view.Job(ctx, r.pod.Commands, id)
}

// Events returns up to limit events of a job whose EventNo is greater than after, oldest first. An after of 0 starts with the first
// event.
func (a Admin) Events(ctx context.Context, id int64, after, limit int) ([]job.Event, error) {
	return view.JobEvents(ctx, a.pod.Commands, id, after, limit)
}
