package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/pod"
	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// nextOccurrences is the number of upcoming occurrences to show; lastOccurrences is the number of past ones.
const (
	nextOccurrences = 5
	lastOccurrences = 20
)

// SetSchedule creates a schedule, or changes the settings that c contains. New times apply from now on. Setting a declared schedule that
// was deleted restores the declaration and applies the change. The kind need not be registered here: the schedule fires once a program that
// handles the kind is running. A dry run reports the result and the next occurrences without making the change.
//
// It returns [job.ErrInvalidSchedule] if a setting is invalid, [job.ErrUnknownLane] if the lane does not exist, [job.ErrConflict] if
// the schedule no longer matches c.From, and [job.ErrUnknownSchedule] if c requires a schedule that does not exist.
func (a Admin) SetSchedule(ctx context.Context, name string, c job.ScheduleChange) (job.ScheduleChanged, error) {
	if c.Kind != nil && *c.Kind != "" {
		if err := job.ValidateKind(*c.Kind); err != nil {
			return job.ScheduleChanged{}, fmt.Errorf("%w: %w (set schedule %q)", job.ErrInvalidSchedule, err, name)
		}
	}
	if err := checkLane(ctx, a.pod, name, c); err != nil {
		return job.ScheduleChanged{}, err
	}
	var from, next time.Time // set if the schedule's times have changed
	done, err := statements.SetSchedule(ctx, a.pod.Commands, name, c, func(s job.ScheduleSetting, anchor time.Time) (_ time.Time, err error) {
		from = anchor
		next, err = a.pod.Submitter.First(s, anchor)
		return next, err
	}, a.actor)
	if err != nil {
		return done, a.pod.DBError(err)
	}
	if next.IsZero() {
		if schedule, err := statements.Schedule(ctx, a.pod.Commands, name); err == nil {
			from, next = schedule.Anchor, orZero(schedule.NextAt)
		}
	}
	done.Words, done.NextFires = upcoming(*done.After, from, next)
	if c.DryRun {
		return done, nil
	}
	return done, a.finishCommand(ctx, nil)
}

// checkLane rejects a lane that does not exist, because every submission would fail. The doctor command reports lanes that are deleted
// later.
func checkLane(ctx context.Context, p *pod.Pod, name string, c job.ScheduleChange) error {
	if c.Lane == nil || *c.Lane == "" {
		return nil
	}
	found, err := view.LaneFor(ctx, p.Commands, nil, "", *c.Lane, job.DefaultLane)
	if err == nil && !found.Exists {
		err = fmt.Errorf("%w: set schedule %q: lane %q", job.ErrUnknownLane, name, *c.Lane)
	}
	return p.DBError(err)
}

// upcoming describes in words when a schedule fires, and returns its occurrences starting with next.
func upcoming(s job.ScheduleSetting, anchor, next time.Time) (words string, occurrences []time.Time) {
	occurrences = []time.Time{}
	cal, err := scheduler.Parse(s.Expression, s.Zone, anchor)
	if err != nil && !errors.Is(err, scheduler.ErrOver) {
		return "", occurrences
	}
	for f := next; !s.Paused && len(occurrences) < nextOccurrences && !f.IsZero(); f = cal.Next(f) {
		occurrences = append(occurrences, f)
	}
	return cal.Words(), occurrences
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// DeleteSchedule deletes a schedule. Its past occurrences are kept for as long as the job history. A declared schedule stays deleted, even
// when the program restarts, until it is set again. It returns [job.ErrUnknownSchedule] if there is no such schedule.
func (a Admin) DeleteSchedule(ctx context.Context, name string) error {
	return a.finishCommand(ctx, statements.DeleteSchedule(ctx, a.pod.Commands, name, a.actor))
}

// PauseSchedule pauses a schedule until [Admin.ResumeSchedule] and reports whether it was active before. It returns
// [job.ErrUnknownSchedule] if there is no such schedule.
func (a Admin) PauseSchedule(ctx context.Context, name string) (bool, error) {
	changed, err := statements.PauseSchedule(ctx, a.pod.Commands, name, true, a.pod.Submitter.First, a.actor)
	return changed, a.finishCommand(ctx, err)
}

// ResumeSchedule resumes a schedule and reports whether it was paused. Occurrences missed during the pause do not fire later. It returns
// [job.ErrUnknownSchedule] if there is no such schedule.
func (a Admin) ResumeSchedule(ctx context.Context, name string) (bool, error) {
	changed, err := statements.PauseSchedule(ctx, a.pod.Commands, name, false, a.pod.Submitter.First, a.actor)
	return changed, a.finishCommand(ctx, err)
}

// TriggerSchedule submits the schedule's job now, in addition to its regular occurrences. It works even if the schedule is paused or the
// previous job has not finished. The schedule's unique key applies. If as is not nil, TriggerSchedule returns [job.ErrConflict] unless
// the schedule's settings still equal as, so that callers trigger only the job that they have seen.
//
// It returns [job.ErrUnknownSchedule] if there is no such schedule, or an error from Runner.Enqueue. After [job.ErrOutcomeUnknown],
// [Admin.ScheduleOccurrences] shows the outcome.
func (a Admin) TriggerSchedule(ctx context.Context, name string, as *job.ScheduleSetting) (job.Occurrence, error) {
	fire, err := a.pod.Submitter.Trigger(ctx, name, as, a.actor)
	if err != nil {
		return job.Occurrence{}, a.finishCommand(ctx, err)
	}
	return fire, nil
}

// Schedules returns all schedules, sorted by name, each with a description of its expression and its next and latest occurrences.
func (a Admin) Schedules(ctx context.Context) ([]job.ScheduleUse, error) {
	list, err := statements.Schedules(ctx, a.pod.Commands)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.Name
	}
	occurrences, err := statements.LastOccurrences(ctx, a.pod.Commands, names, time.Time{}, lastOccurrences)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	uses := make([]job.ScheduleUse, len(list))
	for i, s := range list {
		uses[i] = use(s, occurrences[s.Name])
	}
	return uses, nil
}

func use(s job.Schedule, last []job.Occurrence) job.ScheduleUse {
	u := job.ScheduleUse{Schedule: s, LastFires: last}
	if u.LastFires == nil {
		u.LastFires = []job.Occurrence{}
	}
	u.Words, u.NextFires = upcoming(s.ScheduleSetting, s.Anchor, orZero(s.NextAt))
	return u
}

// ScheduleByName returns one schedule, in the same form as [Admin.Schedules]. It returns [job.ErrUnknownSchedule] if there is no such
// schedule.
func (a Admin) ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error) {
	schedule, err := statements.Schedule(ctx, a.pod.Commands, name)
	if err != nil {
		return job.ScheduleUse{}, a.pod.DBError(err)
	}
	occurrences, err := statements.LastOccurrences(ctx, a.pod.Commands, []string{name}, time.Time{}, lastOccurrences)
	if err != nil {
		return job.ScheduleUse{}, a.pod.DBError(err)
	}
	return use(schedule, occurrences[name]), nil
}

// ScheduleOccurrences returns up to limit of a schedule's latest occurrences before a given time, newest first. The zero time means no time
// limit. limit defaults to 50; the maximum is 1000. The result includes occurrences of a deleted schedule until they are pruned.
// ScheduleOccurrences returns [job.ErrUnknownSchedule] if there is neither a schedule nor an occurrence with that name.
func (a Admin) ScheduleOccurrences(ctx context.Context, name string, before time.Time, limit int) ([]job.Occurrence, error) {
	if limit <= 0 {
		limit = 50
	}
	occurrences, err := statements.LastOccurrences(ctx, a.pod.Commands, []string{name}, before, min(limit, 1000))
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	if len(occurrences[name]) == 0 {
		if _, err := statements.Schedule(ctx, a.pod.Commands, name); err != nil {
			return nil, a.pod.DBError(err)
		}
		return []job.Occurrence{}, nil
	}
	return occurrences[name], nil
}

// PreviewSchedule is like [scheduler.Preview], but also rejects an expression that fires more often than
// Options.MinScheduleInterval allows.
func (a Admin) PreviewSchedule(expression, zone string, after time.Time, n int) (job.SchedulePreview, error) {
	if _, err := a.pod.Submitter.Parse(job.ScheduleSetting{Expression: expression, Zone: zone}, after); err != nil {
		return job.SchedulePreview{}, err
	}
	return scheduler.Preview(expression, zone, after, n)
}
