package engine

import (
	"context"
	"errors"

	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// CancelPage is the maximum number of jobs that a statement cancels.
const CancelPage = 1000

// CancelBatch cancels up to [CancelPage] jobs for a bulk command. Jobs whose rows another session has locked are cancelled one by one.
// CancelBatch returns the fan-outs that must now be settled, and the number of jobs that were cancelled or received a cancel request.
func (i *shared) CancelBatch(ctx context.Context, ids []int64, actor string, d *admin.AuditEntry) (more []int64, done int, err error) {
	seen := make(map[int64]bool, len(ids))
	more, err = i.cancelUnlocked(ctx, i.Commands, ids, job.ReasonCancelled, actor, d, func(id int64) { seen[id] = true })
	for _, id := range ids {
		if err == nil && !seen[id] {
			seen[id], err = i.cancelLocked(ctx, id, actor)
		}
		if seen[id] {
			done++
		}
	}
	return more, done, err
}

// cancelUnlocked cancels the given jobs, except those whose rows are locked, and applies the outcome to this process. It calls seen with
// the id of each job that was cancelled or received a cancel request, and returns the fan-outs that must be settled.
func (i *shared) cancelUnlocked(ctx context.Context, s *store.Store, ids []int64, reason job.Reason, actor string, d *admin.AuditEntry, seen func(id int64)) ([]int64, error) {
	c, err := admin.CancelMany(ctx, s, ids, reason, actor, d)
	if err != nil {
		return nil, err
	}
	i.Ends.ReportAll(c.Ended)
	var changed []store.Line
	for _, end := range c.Ended {
		i.Waiters.Seen(end.ID)
		changed = append(changed, store.Lines(end.Kind, end.Subject, end.Key)...)
		seen(end.ID)
	}
	i.LinesChanged(changed...)
	for _, l := range c.Asked {
		i.CancelRun(l)
		seen(l.JobID)
	}
	if len(c.Asked) > 0 {
		i.WakePeers()
	}
	return c.OffBalance, nil
}

// cancelLocked cancels a single job for a bulk command, waiting until its row is unlocked. It reports false without an error if the job has
// already ended or been deleted.
func (i *shared) cancelLocked(ctx context.Context, id int64, actor string) (bool, error) {
	c, err := admin.CancelAmong(ctx, i.Commands, id, actor, i.CancelRun)
	_, err = i.ApplyCancel(id, c, job.ReasonCancelled, err)
	if errors.Is(err, job.ErrAlreadyTerminal) || errors.Is(err, job.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// ApplyCancel applies the outcome of a cancel or stop command to this process, and returns the job's state.
func (i *shared) ApplyCancel(id int64, c admin.Cancellation, why job.Reason, err error) (job.State, error) {
	if store.Unknown(err) {
		return "", i.CommandError(err)
	}
	if err != nil {
		return c.State, i.DBError(err)
	}
	if c.Ended != nil {
		i.Ends.Report(nil, *c.Ended)
		i.LinesChanged(store.Lines(c.Ended.Kind, c.Ended.Subject, c.Ended.Key)...)
	}
	if c.Pod != nil {
		i.Member.Cancel(job.Lease{JobID: id, Fence: c.Fence, Pod: *c.Pod}, why) // the other pod is notified by its heartbeat
		i.Wake()
	}
	i.Waiters.Seen(id)
	return c.State, nil
}

// cancelFor cancels a handler's context for an operator, or because the job has passed its deadline. A stopped job is already in a terminal
// state, and so is a job past its deadline, unless one of the handler's transactions has locked its row.
func (run *Run) cancelFor(why job.Reason) {
	switch why {
	case job.ReasonForceCancelled:
		run.loss.once.Do(func() {
			close(run.loss.lost)
			run.cancel(job.ErrForceCancelled)
		})
	case job.ReasonDeadline:
		run.cancel(job.ErrDeadline)
	default:
		run.cancel(job.ErrCancelled)
	}
}

// CancelRun cancels a run's handler in this process, with the reason cancelled. If one of the handler's transactions has locked the job's
// row, that transaction ends with the handler's context.
func (i *shared) CancelRun(l job.Lease) {
	if run := i.Runs.Find(l.JobID, l.Fence); run != nil && run.Lease == l {
		run.cancelFor(job.ReasonCancelled)
	}
}

// CancelClaim cancels a claim's handler if it is running in this process.
func (i *shared) CancelClaim(l job.Lease, why job.Reason) {
	if run := i.Runs.Find(l.JobID, l.Fence); run != nil && run.Lease.Pod == l.Pod {
		run.cancelFor(why)
	} else if run == nil {
		i.dropAhead(l.JobID, l.Fence)
	}
}

// CancelOverdue cancels a claim's handler, if it is running in this process, after the claim has been ended because its job passed the
// deadline.
func (i *shared) CancelOverdue(l job.Lease) { i.CancelClaim(l, job.ReasonDeadline) }

// dropAhead drops a job that was claimed ahead of time and has since been cancelled. The search for orphaned claims then finishes the job.
func (i *shared) dropAhead(id, fence int64) {
	removed := i.Ahead.Remove(func(c *slots.Claim) bool { return c.ID == id && c.Fence == fence })
	i.Ahead.Done(removed...)
	if len(removed) > 0 {
		i.Unknown.Raise()
		i.Wake()
	}
}
