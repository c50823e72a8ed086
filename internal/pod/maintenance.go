package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// newMaintenance returns a Maintenance with this pod's options.
func newMaintenance(p *Pod) *maintenance.Maintenance {
	o := maintenance.Options{
		Store: p.Slow, Log: p.Log, Metrics: p.Metrics, Pod: p.opts.Name, LeadEvery: 2 * p.opts.PollInterval, Trusted: p.Lease.Trusted,
		RetainSucceeded: p.opts.RetainSucceeded, RetainFailed: p.opts.RetainFailed, RetainCancelled: p.opts.RetainCancelled,
		RetainEvents: p.opts.RetainEvents, ApprovalTTL: p.opts.ApprovalTTL, MaxAge: p.opts.MaxAge,
		Ended: p.Ends.ReportAll, LinesChanged: p.LinesChanged, Overdue: p.CancelOverdue, FanOutsChanged: p.Unsettled.CheckAll, Wake: p.Wake, WakePeers: p.WakePeers, Count: p.DBError,
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

// statsNotWritten is logged through [telemetry.Damped].
const statsNotWritten = "could not write the counts of ended jobs"

// keepStats writes the counts of finished jobs at the end of each minute of the database's clock until ctx ends. It retries counts that
// could not be written before. If the pod crashes, the current minute's counts are lost.
func (p *Pod) keepStats(ctx context.Context) {
	for next := true; next; {
		p.writeStats(ctx, false)
		now := p.Clock.Now()
		next = routine.Sleep(ctx, now.Truncate(time.Minute).Add(time.Minute).Sub(now))
	}
}

// writeLastStats writes the remaining counts when the pod stops. If the write fails, they are lost.
func (p *Pod) writeLastStats(ctx context.Context) {
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	p.writeStats(stopping, true)
}

func (p *Pod) writeStats(ctx context.Context, stopping bool) {
	rows := p.Ends.Stats.Rows(p.Clock.Now(), p.PodID(), stopping)
	if err := upkeep.AddStats(ctx, p.Slow, rows); err != nil {
		p.Damped.Warn(ctx, statsNotWritten, telemetry.Err, p.DBError(err))
		return
	}
	p.Ends.Stats.Written(len(rows))
	p.Damped.Over(ctx, statsNotWritten)
}

// Examine runs doctor's checks with this pod's options and returns the findings. It runs its queries on s.
func (p *Pod) Examine(ctx context.Context, s *store.Store, t doctor.Thresholds) ([]doctor.Finding, error) {
	findings, err := doctor.Examine(ctx, s, doctor.Pod{
		Name: p.opts.Name, Slots: p.Slots(), Connections: Connections, HostConnections: int(p.Pool.Config().MaxConns),
		MaxAge: p.opts.MaxAge, ApprovalTTL: p.opts.ApprovalTTL, Log: p.Log, Own: p.Commands,
	}, t)
	if err == nil {
		findings = p.checkEngines(ctx, findings)
		findings, err = p.checkInDatabase(ctx, s, findings)
	}
	return findings, p.DBError(err)
}

// checkInDatabase warns about kinds of this pod whose handlers need a PostgreSQL transaction and fail because another engine runs their
// lane.
func (p *Pod) checkInDatabase(ctx context.Context, s *store.Store, findings []doctor.Finding) ([]doctor.Finding, error) {
	if len(p.laneEngines.all()) == 0 {
		return findings, nil
	}
	lanes, err := view.Lanes(ctx, s)
	for _, l := range lanes {
		for _, kind := range p.HandledKinds {
			if lane, _ := p.Lanes.Lookup(kind, ""); l.Engine != job.EnginePostgreSQL && lane == l.Name && p.Kinds[kind].RequiresDatabase {
				findings = append(findings, doctor.Finding{Check: l.Engine, Status: doctor.Warning,
					Says: fmt.Sprintf("jobs of kind %s fail in lane %s, because its handler is registered with RequiresDatabase", kind, lane),
					Do:   "move the kind to a lane with the engine postgres"})
			}
		}
	}
	return findings, err
}
