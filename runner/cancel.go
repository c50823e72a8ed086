package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// cancelAmong cancels one of many jobs that a command is for.
func (r *engine) cancelAmong(ctx context.Context, id int64, actor string) error {
	c, err := admin.CancelAmong(ctx, r.front, id, actor, r.tellRun)
	_, err = r.cancelled(id, c, job.ReasonCancelled, err)
	return err
}

// cancelled applies the outcome of a cancel or stop to this process, and returns the state of the job.
func (r *engine) cancelled(id int64, c admin.Cancellation, why job.Reason, err error) (job.State, error) {
	if store.Unknown(err) {
		return "", r.commandError(err)
	}
	if err != nil {
		return c.State, r.dbError(err)
	}
	if c.EndedKind != "" {
		r.count.ends.count(job.Cancelled, "", c.EndedKind)
	}
	if c.Pod != nil {
		r.member.Cancel(job.Lease{JobID: id, Fence: c.Fence, Pod: *c.Pod}, why) // another pod learns it by its heartbeat
		r.wake()
	}
	r.waiters.seen(id)
	return c.State, nil
}
