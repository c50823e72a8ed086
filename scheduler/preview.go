package scheduler

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Preview describes an expression in plain language and returns its next n occurrences after a given time, or fewer if there are no
// more. An empty zone means UTC. It needs no database. It returns [job.ErrInvalidSchedule] if the expression is invalid.
func Preview(expression, zone string, after time.Time, n int) (job.SchedulePreview, error) {
	calendar, err := Parse(expression, zone, after)
	if err != nil {
		return job.SchedulePreview{}, err
	}
	if zone == "" {
		zone = job.DefaultSchedule().Zone
	}
	shown := job.SchedulePreview{Expression: expression, Zone: zone, Words: calendar.Words(), NextFires: []time.Time{}}
	for at := calendar.Next(after); len(shown.NextFires) < n && !at.IsZero(); at = calendar.Next(at) {
		shown.NextFires = append(shown.NextFires, at)
	}
	return shown, nil
}
