package pod

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/work"
)

// declareKinds stores the failure steps and limits of this pod's kinds, because pods that do not know a kind may have to end, recover or admit
// its jobs.
func (p *Pod) declareKinds(ctx context.Context) error {
	if len(p.HandledKinds) == 0 {
		return nil
	}
	kinds := make([]admin.Kind, len(p.HandledKinds))
	for i, name := range p.HandledKinds {
		k := p.Kinds[name]
		plan, err := work.EncodePlan(name, k.OnFailure)
		if err != nil {
			return err
		}
		kinds[i] = admin.Kind{Name: name, OnFailure: plan, MaxCrashes: k.MaxCrashes, PerKey: k.PerKey, StartMillis: k.StartWithin.Milliseconds()}
	}
	return admin.DeclareKinds(ctx, p.Commands, kinds)
}
