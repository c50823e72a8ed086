package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/job"
)

// newMaintenance returns the maintenance that this pod does its share of.
func newMaintenance(r *Runner) *maintenance.Maintenance {
	o := maintenance.Options{
		Store: r.front, Log: r.log, Metrics: r.metrics, Pod: r.opts.Name, LeadEvery: 2 * r.opts.PollEvery, Trusted: r.pod.trusted,
		RetainSucceeded: r.opts.RetainSucceeded, RetainFailed: r.opts.RetainFailed, RetainCancelled: r.opts.RetainCancelled,
		RetainEvents: r.opts.RetainEvents, ApprovalTTL: r.opts.ApprovalTTL, MaxAge: r.opts.MaxAge,
		Ended: r.count.ends.count, Overdue: r.cancelOverdue, FanOutsChanged: r.unbalanced.lookAround, Wake: r.wake, WakePeers: r.wakePeers, Count: r.dbError,
	}
	if !r.deaf() {
		o.Direct = r.direct
	}
	return maintenance.New(o)
}

// cancelOverdue cancels the handler of a claim that has been ended because its job is too old, if it runs here.
func (r *Runner) cancelOverdue(l job.Lease) {
	if one := r.runs.find(l.JobID, l.Fence); one != nil && one.Lease.Pod == l.Pod {
		r.cancelRun(one, job.ReasonDeadline)
	}
}

// strandedFor is the time for which heartbeats ask for the jobs of a deleted lane to be moved: those of transactions that committed later,
// and those that ran and come back. Later the maintenance finds them, within a minute.
const strandedFor = 5 * time.Minute

// Maintain does every task of the maintenance once, now; a runner that is run does them by itself, by the minute. It is for tools and tests that
// must not wait for that. It goes on after an error and returns the errors of all tasks. Safe for concurrent use.
func (r *Runner) Maintain(ctx context.Context) error { return r.maintenance.RunOnce(ctx) }
