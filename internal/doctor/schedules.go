package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// schedules finds schedules that cannot fire as configured, or whose jobs no pod or lane accepts.
func (e *examination) schedules(ctx context.Context) error {
	list, err := view.ReadScheduleHealth(ctx, e.store)
	if err != nil {
		return err
	}
	paused, bad := 0, false
	for _, s := range list {
		if s.Paused {
			paused++
			continue
		}
		if says, do := scheduleIll(s); says != "" {
			bad = true
			e.find("schedules", Failing, "schedule "+s.Name+says, do)
		}
	}
	if !bad {
		e.find("schedules", Healthy, fmt.Sprintf("%s, %d paused, the others fire on time", text.Count(len(list), "schedule", "schedules"), paused), "")
	}
	return nil
}

// scheduleIll returns a schedule's problem and its remedy, or empty strings for a healthy schedule. It reports causes before their effects.
func scheduleIll(s view.ScheduleHealth) (says, do string) {
	name := text.ShellWord(s.Name)
	switch {
	case s.Error != "":
		return " does not fire: " + text.Short(s.Error, 200),
			fmt.Sprintf("see trapeze cron show %s; correct it with trapeze cron set %s …, and try expressions with trapeze cron next", name, name)
	case !s.Placed:
		return fmt.Sprintf(" names the lane %q, which does not exist: its jobs are refused", s.Lane),
			fmt.Sprintf("trapeze lane set %s slots=2, or trapeze cron set %s --lane default", text.ShellWord(s.Lane), name)
	case s.Pods == 0:
		return fmt.Sprintf(": no live pod runs %q, so it does not fire, or its jobs wait", s.Kind),
			fmt.Sprintf("start a pod that registers it (check TRAPEZE_KINDS), or trapeze cron pause %s", name)
	case s.Due > job.MissedAfter.Seconds():
		return fmt.Sprintf(" has been due for %s, and has not fired", text.Seconds(s.Due)),
			"see docs/operating.md, \"A schedule did not fire\", the logs of the pods, and the checks pods and clock"
	}
	if first := passedOver(s); !first.IsZero() {
		return fmt.Sprintf(" fires next at %s and skips the earlier occurrences of its expression, starting at %s: the database's clock was ahead, or next_at was set by hand",
				text.ClockIn(s.Zone, s.Next), text.ClockIn(s.Zone, &first)),
			fmt.Sprintf("trapeze cron pause %s, then trapeze cron resume %s: this plans it from now on", name, name)
	}
	return "", ""
}

// passedOver returns the first future occurrence that a schedule will skip because its next run is planned for more than a minute later. It
// returns the zero time if there is no such occurrence, or if this machine cannot parse the expression or the time zone.
func passedOver(s view.ScheduleHealth) time.Time {
	if s.Next == nil {
		return time.Time{}
	}
	calendar, err := scheduler.Parse(s.Expression, s.Zone, s.Now)
	if err != nil {
		return time.Time{}
	}
	first := calendar.Next(s.Now)
	if first.IsZero() || s.Next.Sub(first) <= time.Minute {
		return time.Time{}
	}
	return first
}
