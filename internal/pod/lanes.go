package pod

import (
	"context"
	"slices"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// MakeLanes creates the lanes defined in the program's options, and the lane default, unless they exist.
func (p *Pod) MakeLanes(ctx context.Context) error {
	for _, l := range append(slices.Clone(p.opts.Lanes), admin.BootLane{Name: job.DefaultLane}) { // its row may have been deleted by hand
		made, left, err := admin.Bootstrap(ctx, p.Commands, l)
		if err != nil {
			return err
		}
		if made {
			p.Log.InfoContext(ctx, "lane created from configuration", telemetry.Lane, l.Name, "kinds", l.Kinds)
		}
		if len(left) > 0 {
			p.Log.WarnContext(ctx, "kinds keep their lanes in the database, which differ from the configuration", telemetry.Lane, l.Name, "kinds", left)
		}
	}
	return nil
}
