package pod

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/store"
)

// Examine runs doctor's checks with this pod's options and returns the findings. It uses s to run queries.
func (p *Pod) Examine(ctx context.Context, s *store.Store, t doctor.Thresholds) ([]doctor.Finding, error) {
	findings, err := doctor.Examine(ctx, s, doctor.Pod{
		Name: p.opts.Name, Slots: p.Slots(), Connections: Connections, HostConnections: int(p.Pool.Config().MaxConns),
		MaxAge: p.opts.MaxAge, ApprovalTTL: p.opts.ApprovalTTL, Log: p.Log,
	}, t)
	if err == nil {
		findings = p.checkEngines(ctx, findings)
	}
	return findings, p.DBError(err)
}
