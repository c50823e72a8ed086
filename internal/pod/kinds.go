package pod

import (
	"context"
	"encoding/json"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/work"
)

// declareKinds stores the on-failure jobs of this pod's kinds: pods that do not know a kind may end its jobs.
func (p *Pod) declareKinds(ctx context.Context) error {
	plans := make(map[string]json.RawMessage, len(p.HandledKinds))
	for _, kind := range p.HandledKinds {
		plan, err := work.EncodePlan(kind, p.Kinds[kind].OnFailure)
		if err != nil {
			return err
		}
		plans[kind] = plan
	}
	if len(plans) == 0 {
		return nil
	}
	return admin.DeclareKinds(ctx, p.Commands, plans)
}
