package runner

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// PreviewSchedule is the function [PreviewSchedule] with the checks of this runner: it rejects an expression that fires more often than
// Options.MinScheduleInterval.
func (a Admin) PreviewSchedule(expression, zone string, after time.Time, n int) (job.SchedulePreview, error) {
	if _, err := a.pod.Calendar.Parse(job.ScheduleSetting{Expression: expression, Zone: zone}, after); err != nil {
		return job.SchedulePreview{}, err
	}
	return PreviewSchedule(expression, zone, after, n)
}

// PreviewSchedule describes an expression in plain language and returns its next n occurrences after a moment, or fewer if there are no
// more. An empty zone is UTC. It needs no database. Errors: [job.ErrInvalidSchedule].
func PreviewSchedule(expression, zone string, after time.Time, n int) (job.SchedulePreview, error) {
	calendar, err := scheduler.Parse(expression, zone, after)
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
