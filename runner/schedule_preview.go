package runner

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// PreviewSchedule is the function of this name for what may be set here: nothing that fires more often than Options.MinScheduleInterval.
func (a Admin) PreviewSchedule(expression, zone string, after time.Time, n int) (job.SchedulePreview, error) {
	if _, err := a.pod.Calendar.Parse(job.ScheduleSetting{Expression: expression, Zone: zone}, after); err != nil {
		return job.SchedulePreview{}, err
	}
	return PreviewSchedule(expression, zone, after, n)
}

// PreviewSchedule says in words what an expression means in a zone (empty: UTC), and when it would fire after a moment: n times, or fewer
// when it is over. It asks no database. Errors: [job.ErrInvalidSchedule].
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
