package pod

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

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
			if lane, _, _ := p.Lanes.Lookup(kind, ""); l.Engine != job.EnginePostgreSQL && lane == l.Name && p.Kinds[kind].InDatabase {
				findings = append(findings, doctor.Finding{Check: l.Engine, Status: doctor.Warning,
					Says: fmt.Sprintf("jobs of kind %s fail in lane %s, because its handler is registered with InDatabase", kind, lane),
					Do:   "move the kind to a lane with the engine postgres"})
			}
		}
	}
	return findings, err
}
