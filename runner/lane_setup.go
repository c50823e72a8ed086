package runner

import (
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/job"
)

// LaneSetup declares a lane; see Options.Lanes.
type LaneSetup struct {
	Name  string
	Slots *int     // limit across all pods, or nil for no limit
	Kinds []string // the kinds that use this lane by default
	// SlotsPerPod is the maximum number of the lane's jobs that a single pod runs concurrently, or nil for no limit.
	SlotsPerPod *int
}

// ValidateLanes returns all mistakes in Options.Lanes as one error. The error wraps [job.ErrInvalidSetting], and also
// [job.ErrKindInTwoLanes] if a kind has more than one default lane.
func ValidateLanes(lanes []LaneSetup) error {
	var errs []error
	names, laneOf := map[string]bool{}, map[string]string{}
	for _, l := range lanes {
		if names[l.Name] {
			errs = append(errs, fmt.Errorf("%w: duplicate lane %q", job.ErrInvalidSetting, l.Name))
		}
		names[l.Name] = true
		change := job.LaneChange{Slots: job.Limit[int]{Set: true, Value: l.Slots}, SlotsPerPod: job.Limit[int]{Set: true, Value: l.SlotsPerPod}}
		errs = append(errs, job.ValidateLaneName(l.Name), change.Validate())
		for _, kind := range l.Kinds {
			if other, twice := laneOf[kind]; twice {
				errs = append(errs, fmt.Errorf("%w: kind %q is in lanes %q and %q", job.ErrKindInTwoLanes, kind, other, l.Name))
			}
			laneOf[kind] = l.Name
			if kind == "" {
				errs = append(errs, fmt.Errorf("%w: lane %q: empty kind name", job.ErrInvalidSetting, l.Name))
			}
		}
	}
	return errors.Join(errs...)
}
