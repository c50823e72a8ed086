package runner

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/maintenance"
)

// newMaintenance returns the maintenance that this pod does its share of.
func newMaintenance(p *pod) *maintenance.Maintenance {
	o := maintenance.Options{
		Store: p.front, Log: p.log, Metrics: p.metrics, Pod: p.opts.Name, LeadEvery: 2 * p.opts.PollEvery, Trusted: p.lease.trusted,
		RetainSucceeded: p.opts.RetainSucceeded, RetainFailed: p.opts.RetainFailed, RetainCancelled: p.opts.RetainCancelled,
		RetainEvents: p.opts.RetainEvents, ApprovalTTL: p.opts.ApprovalTTL, MaxAge: p.opts.MaxAge,
		Ended: p.count.ends.count, Overdue: p.cancelOverdue, FanOutsChanged: p.unbalanced.lookAround, Wake: p.wake, WakePeers: p.wakePeers, Count: p.dbError,
	}
	if !p.deaf() {
		o.Direct = p.direct
	}
	return maintenance.New(o)
}

// strandedFor is the time for which heartbeats ask for the jobs of a deleted lane to be moved: those of transactions that committed later,
// and those that ran and come back. Later the maintenance finds them, within a minute.
const strandedFor = 5 * time.Minute
