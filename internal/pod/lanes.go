package pod

import (
	"context"
	"errors"
	"fmt"
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

// checkLanes returns an error if this pod runs a kind whose lane does not exist. Jobs of that kind would wait forever.
func (p *Pod) checkLanes() error {
	var errs []error
	for _, kind := range p.HandledKinds {
		lane, _, _ := p.Lanes.Lookup(kind, "")
		if _, known, _ := p.Lanes.Lookup(kind, lane); !known {
			errs = append(errs, fmt.Errorf("%w: kind %q belongs to lane %q, which does not exist", job.ErrUnknownLane, kind, lane))
		}
	}
	return errors.Join(errs...)
}
