package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// cancelAmong cancels one of many jobs that a command is for.
func (r *Engine) CancelAmong(ctx context.Context, id int64, actor string) error {
	c, err := admin.CancelAmong(ctx, r.Commands, id, actor, r.TellRun)
	_, err = r.Cancelled(id, c, job.ReasonCancelled, err)
	return err
}

// cancelled applies the outcome of a cancel or stop to this process, and returns the state of the job.
func (r *Engine) Cancelled(id int64, c admin.Cancellation, why job.Reason, err error) (job.State, error) {
	if store.Unknown(err) {
		return "", r.CommandError(err)
	}
	if err != nil {
		return c.State, r.DBError(err)
	}
	if c.EndedKind != "" {
		r.Count.Ends.Count(job.Cancelled, "", c.EndedKind)
	}
	if c.Pod != nil {
		r.Member.Cancel(job.Lease{JobID: id, Fence: c.Fence, Pod: *c.Pod}, why) // another pod learns it by its heartbeat
		r.Wake()
	}
	r.Waiters.Seen(id)
	return c.State, nil
}
