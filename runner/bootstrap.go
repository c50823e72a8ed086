package runner

import (
	"context"
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// LaneSetup is a lane as a program would have it: see Options.Lanes.
type LaneSetup struct {
	Name  string
	Slots *int     // of all pods together; nil: no limit
	Kinds []string // whose default lane it is
}

// ValidateLanes returns every mistake in Options.Lanes at once: [job.ErrInvalidSetting], and [job.ErrKindInTwoLanes], since a kind
// has one default lane.
func ValidateLanes(lanes []LaneSetup) error {
	var errs []error
	names, laneOf := map[string]bool{}, map[string]string{}
	for _, l := range lanes {
		if names[l.Name] {
			errs = append(errs, fmt.Errorf("lane %q is there twice: %w", l.Name, job.ErrInvalidSetting))
		}
		names[l.Name] = true
		change := job.LaneChange{Slots: job.Limit{Set: true, Value: l.Slots}}
		errs = append(errs, job.ValidateLaneName(l.Name), change.Validate())
		for _, kind := range l.Kinds {
			if other, twice := laneOf[kind]; twice {
				errs = append(errs, fmt.Errorf("kind %q is in lane %q and in lane %q: %w", kind, other, l.Name, job.ErrKindInTwoLanes))
			}
			laneOf[kind] = l.Name
			if kind == "" {
				errs = append(errs, fmt.Errorf("lane %q: a kind without a name: %w", l.Name, job.ErrInvalidSetting))
			}
		}
	}
	return errors.Join(errs...)
}

// bootstrap makes the lanes that the program names and the database does not know.
func (r *Runner) bootstrap(ctx context.Context) error {
	for _, l := range r.opts.Lanes {
		made, left, err := admin.Bootstrap(ctx, r.front, admin.BootLane(l))
		if err != nil {
			return err
		}
		if made {
			r.log.InfoContext(ctx, "lane made as configured", telemetry.Lane, l.Name, "kinds", l.Kinds)
		}
		if len(left) > 0 {
			r.log.WarnContext(ctx, "kinds stay in the lanes that the database has for them", telemetry.Lane, l.Name, "kinds", left)
		}
	}
	return nil
}

// housed returns an error when a kind that this pod runs has no lane that exists: its jobs would wait for ever.
func (r *Runner) housed() error {
	var errs []error
	for _, kind := range r.mineAll {
		lane, _, _ := r.lanes.Lookup(kind, "")
		if _, known, _ := r.lanes.Lookup(kind, lane); !known {
			errs = append(errs, fmt.Errorf("kind %q belongs to lane %q, which does not exist: %w", kind, lane, job.ErrUnknownLane))
		}
	}
	return errors.Join(errs...)
}
