package pod

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/maintenance"
)

// newMaintenance returns a Maintenance with this pod's options.
func newMaintenance(p *Pod) *maintenance.Maintenance {
	o := maintenance.Options{
		Store: p.Slow, Log: p.Log, Metrics: p.Metrics, Pod: p.opts.Name, LeadEvery: 2 * p.opts.PollEvery, Trusted: p.Lease.Trusted,
		RetainSucceeded: p.opts.RetainSucceeded, RetainFailed: p.opts.RetainFailed, RetainCancelled: p.opts.RetainCancelled,
		RetainEvents: p.opts.RetainEvents, ApprovalTTL: p.opts.ApprovalTTL, MaxAge: p.opts.MaxAge,
		Ended: p.Ends.ReportAll, SubjectChanged: p.SubjectChanged, Overdue: p.CancelOverdue, FanOutsChanged: p.Unsettled.CheckAll, Wake: p.Wake, WakePeers: p.WakePeers, Count: p.DBError,
	}
	if !p.NotificationsDisabled() {
		o.Session = &p.listener
	}
	return maintenance.New(o)
}

// Maintain runs every maintenance task once, immediately.
func (p *Pod) Maintain(ctx context.Context) error { return p.maintenance.RunOnce(ctx) }

// strandedFor is the period after a lane's deletion during which each heartbeat requests that the lane's jobs be moved. More of them can
// appear when an open transaction commits or a running job becomes pending again. After strandedFor, it may take maintenance a minute to
// find them.
const strandedFor = 5 * time.Minute
