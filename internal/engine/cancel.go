package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// CancelAmong cancels a single job on behalf of a bulk command.
func (i *Identity) CancelAmong(ctx context.Context, id int64, actor string) error {
	c, err := admin.CancelAmong(ctx, i.Commands, id, actor, i.NotifyRun)
	_, err = i.ApplyCancel(id, c, job.ReasonCancelled, err)
	return err
}

// ApplyCancel applies the outcome of a cancel or stop command to this process, and returns the state of the job.
func (i *Identity) ApplyCancel(id int64, c admin.Cancellation, why job.Reason, err error) (job.State, error) {
	if store.Unknown(err) {
		return "", i.CommandError(err)
	}
	if err != nil {
		return c.State, i.DBError(err)
	}
	if c.Ended != nil {
		i.Ends.Report(nil, *c.Ended)
	}
	if c.Pod != nil {
		i.Member.Cancel(job.Lease{JobID: id, Fence: c.Fence, Pod: *c.Pod}, why) // the other pod is notified by its heartbeat
		i.Wake()
	}
	i.Waiters.Seen(id)
	return c.State, nil
}

// cancelFor ends a handler's context on behalf of an operator, or because the job exceeded its deadline. A stopped job is already terminal.
// So is a job past its deadline, unless a transaction of the handler has locked its row.
func (one *Run) cancelFor(why job.Reason) {
	switch why {
	case job.ReasonStopped:
		one.loss.once.Do(func() {
			close(one.loss.lost)
			one.cancel(job.ErrStopped)
		})
	case job.ReasonDeadline:
		one.cancel(job.ErrDeadline)
	default:
		one.cancel(job.ErrCancelled)
	}
}

// NotifyRun cancels the handler of a run in this process. If a transaction of the handler locks the job's row, that transaction ends with
// the handler's context.
func (i *Identity) NotifyRun(l job.Lease) {
	if one := i.Runs.Find(l.JobID, l.Fence); one != nil && one.Lease == l {
		one.cancelFor(job.ReasonCancelled)
	}
}

// CancelClaim cancels the handler of a claim if it is running in this process.
func (i *Identity) CancelClaim(l job.Lease, why job.Reason) {
	if one := i.Runs.Find(l.JobID, l.Fence); one != nil && one.Lease.Pod == l.Pod {
		one.cancelFor(why)
	} else if one == nil {
		i.dropAhead(l.JobID, l.Fence)
	}
}

// CancelOverdue cancels a claim's handler if it is running in this process. The claim has already been ended because its job passed its
// deadline.
func (i *Identity) CancelOverdue(l job.Lease) { i.CancelClaim(l, job.ReasonDeadline) }

// dropAhead drops a job that was claimed ahead of time and must now be cancelled. The search for orphaned claims then finishes the job.
func (i *Identity) dropAhead(id, fence int64) {
	removed := i.ahead.Remove(func(c *slots.Claim) bool { return c.ID == id && c.Fence == fence })
	i.ahead.Done(removed...)
	if len(removed) > 0 {
		i.Unknown.Raise()
		i.Wake()
	}
}
