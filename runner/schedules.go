package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// nextFires is how many fires ahead are shown, lastFires how many of the past.
const (
	nextFires = 5
	lastFires = 20
)

// SetSchedule creates a schedule, or changes what c mentions of it. One that is to fire at other times than before does so from now on;
// one that the program declares and somebody deleted comes back as it is declared, with the change. The kind need not be known here: a
// schedule fires as soon as a program that has its handler is there. A dry run tells what would change and when it would fire.
// Errors: [job.ErrInvalidSchedule], [job.ErrUnknownLane], [job.ErrUnknownSchedule] when it should exist, [job.ErrScheduleMoved].
func (a Admin) SetSchedule(ctx context.Context, name string, c job.ScheduleChange, actor string) (job.ScheduleChanged, error) {
	if c.Kind != nil && *c.Kind != "" {
		if err := job.ValidateKind(*c.Kind); err != nil {
			return job.ScheduleChanged{}, fmt.Errorf("%w: %w (set schedule %q)", job.ErrInvalidSchedule, err, name)
		}
	}
	if err := checkLane(ctx, a.pod, name, c); err != nil {
		return job.ScheduleChanged{}, err
	}
	var from, next time.Time // if its times have changed
	done, err := admin.SetSchedule(ctx, a.pod.Commands, name, c, func(s job.ScheduleSetting, anchor time.Time) (_ time.Time, err error) {
		from = anchor
		next, err = a.pod.Calendar.First(s, anchor)
		return next, err
	}, named(actor))
	if err != nil {
		return done, a.pod.DBError(err)
	}
	if next.IsZero() {
		if one, err := admin.Schedule(ctx, a.pod.Commands, name); err == nil {
			from, next = one.Anchor, orZero(one.NextAt)
		}
	}
	done.Words, done.NextFires = ahead(*done.After, from, next)
	if c.DryRun {
		return done, nil
	}
	return done, a.operated(ctx, nil)
}

// checkLane refuses a lane that does not exist: every fire would be refused. One that is deleted later is what the doctor finds.
func checkLane(ctx context.Context, p *pod.Pod, name string, c job.ScheduleChange) error {
	if c.Lane == nil || *c.Lane == "" {
		return nil
	}
	_, exists, err := view.LaneFor(ctx, p.Commands, "", *c.Lane, job.DefaultLane)
	if err == nil && !exists {
		err = fmt.Errorf("%w: set schedule %q: lane %q", job.ErrUnknownLane, name, *c.Lane)
	}
	return p.DBError(err)
}

// ahead says in words when a schedule fires, and lists its fires from the next one on.
func ahead(s job.ScheduleSetting, anchor, next time.Time) (words string, fires []time.Time) {
	fires = []time.Time{}
	cal, err := scheduler.Parse(s.Expression, s.Zone, anchor)
	if err != nil && !errors.Is(err, scheduler.ErrOver) {
		return "", fires
	}
	for f := next; !s.Paused && len(fires) < nextFires && !f.IsZero(); f = cal.Next(f) {
		fires = append(fires, f)
	}
	return cal.Words(), fires
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// DeleteSchedule takes a schedule away; its last fires are kept as long as the history. One that the program declares stays away, also
// when the program starts again, until it is set anew. Error: [job.ErrUnknownSchedule].
func (a Admin) DeleteSchedule(ctx context.Context, name, actor string) error {
	return a.operated(ctx, admin.DeleteSchedule(ctx, a.pod.Commands, name, named(actor)))
}

// PauseSchedule keeps a schedule from firing until [Admin.ResumeSchedule], and reports whether it fired before.
// Error: [job.ErrUnknownSchedule].
func (a Admin) PauseSchedule(ctx context.Context, name, actor string) (bool, error) {
	changed, err := admin.PauseSchedule(ctx, a.pod.Commands, name, true, a.pod.Calendar.First, named(actor))
	return changed, a.operated(ctx, err)
}

// ResumeSchedule lets a schedule fire again, from now on: what would have fired meanwhile is not made up for. It reports whether it was
// paused. Error: [job.ErrUnknownSchedule].
func (a Admin) ResumeSchedule(ctx context.Context, name, actor string) (bool, error) {
	changed, err := admin.PauseSchedule(ctx, a.pod.Commands, name, false, a.pod.Calendar.First, named(actor))
	return changed, a.operated(ctx, err)
}

// TriggerSchedule submits the job of a schedule now, beside what the calendar says: also of one that is paused, and while the job of the
// fire before goes on. Its unique key counts. Errors: [job.ErrUnknownSchedule], and those of [Runner.Enqueue]; after
// [job.ErrOutcomeUnknown] the list of its fires tells.
func (a Admin) TriggerSchedule(ctx context.Context, name, actor string) (job.Fire, error) {
	return a.TriggerScheduleAs(ctx, name, nil, actor)
}

// TriggerScheduleAs is [Admin.TriggerSchedule] of a schedule as somebody has looked at it: [job.ErrScheduleMoved] when it is set otherwise
// by now. What it is set to is the caller's decision only then. Nil: however it is set.
func (a Admin) TriggerScheduleAs(ctx context.Context, name string, as *job.ScheduleSetting, actor string) (job.Fire, error) {
	fire, err := a.pod.Calendar.Trigger(ctx, name, as, named(actor))
	if err != nil {
		return job.Fire{}, a.operated(ctx, err)
	}
	return fire, nil
}

// Schedules lists the schedules by name, each with what its expression says, its next fires and its latest ones.
func (a Admin) Schedules(ctx context.Context) ([]job.ScheduleUse, error) {
	list, err := admin.Schedules(ctx, a.pod.Commands)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.Name
	}
	fires, err := admin.LastFires(ctx, a.pod.Commands, names, time.Time{}, lastFires)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	uses := make([]job.ScheduleUse, len(list))
	for i, s := range list {
		uses[i] = use(s, fires[s.Name])
	}
	return uses, nil
}

func use(s job.Schedule, last []job.Fire) job.ScheduleUse {
	u := job.ScheduleUse{Schedule: s, LastFires: last}
	if u.LastFires == nil {
		u.LastFires = []job.Fire{}
	}
	u.Words, u.NextFires = ahead(s.ScheduleSetting, s.Anchor, orZero(s.NextAt))
	return u
}

// ScheduleByName reads one schedule, as [Admin.Schedules] lists it. Error: [job.ErrUnknownSchedule].
func (a Admin) ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error) {
	one, err := admin.Schedule(ctx, a.pod.Commands, name)
	if err != nil {
		return job.ScheduleUse{}, a.pod.DBError(err)
	}
	fires, err := admin.LastFires(ctx, a.pod.Commands, []string{name}, time.Time{}, lastFires)
	if err != nil {
		return job.ScheduleUse{}, a.pod.DBError(err)
	}
	return use(one, fires[name]), nil
}

// ScheduleFires lists the latest fires of a schedule, newest first, at most limit (default 50, at most 1000): also those of one that was
// deleted, as long as they are kept. Error: [job.ErrUnknownSchedule] when there are none, and no schedule either.
func (a Admin) ScheduleFires(ctx context.Context, name string, limit int) ([]job.Fire, error) {
	return a.ScheduleFiresBefore(ctx, name, time.Time{}, limit)
}

// ScheduleFiresBefore is [Admin.ScheduleFires] of the fires before a moment; the zero moment is no bound.
func (a Admin) ScheduleFiresBefore(ctx context.Context, name string, before time.Time, limit int) ([]job.Fire, error) {
	if limit <= 0 {
		limit = 50
	}
	fires, err := admin.LastFires(ctx, a.pod.Commands, []string{name}, before, min(limit, 1000))
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	if len(fires[name]) == 0 {
		if _, err := admin.Schedule(ctx, a.pod.Commands, name); err != nil {
			return nil, a.pod.DBError(err)
		}
		return []job.Fire{}, nil
	}
	return fires[name], nil
}
