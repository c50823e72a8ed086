package runner

import (
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/job"
)

// LaneSetup declares a lane; see Options.Lanes.
type LaneSetup struct {
	Name  string
	Slots *int     // limit over all pods; nil: no limit
	Kinds []string // the kinds whose default lane it is
	// SlotsPerPod limits how many of its jobs one pod runs at once; nil: no limit.
	SlotsPerPod *int
}

// ValidateLanes returns every mistake in Options.Lanes at once: [job.ErrInvalidSetting], and [job.ErrKindInTwoLanes] because a
// kind has one default lane.
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
				errs = append(errs, fmt.Errorf("%w: lane %q: a kind without a name", job.ErrInvalidSetting, l.Name))
			}
		}
	}
	return errors.Join(errs...)
}
