package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// createScheduleSQL creates a schedule unless its name is taken. Plan: one insert.
	createScheduleSQL = `
insert into trapeze.schedules (name, expression, zone, kind, args, lane, subject, priority, unique_key, missed, catch_up, overlap, paused, declared)
values ($1, $2, $3, $4, $5::text::json, $6, $7, $8, $9, $10, $11, $12, $13, $14::text::json)
on conflict (name) do nothing`
	// setScheduleSQL changes a schedule whose row is locked. If its times change, the schedule must be replanned. Plan: primary key lookup.
	setScheduleSQL = `
update trapeze.schedules set expression = $2, zone = $3, kind = $4, args = $5::text::json, lane = $6, subject = $7, priority = $8,
	unique_key = $9, missed = $10, catch_up = $11, overlap = $12, paused = $13, declared = $14::text::json, removed = $15,
	updated_at = clock_timestamp()
where name = $1`
	// deleteScheduleSQL deletes a schedule. Its occurrences are kept for the usual retention period. Plan: primary key lookup.
	deleteScheduleSQL = `delete from trapeze.schedules where name = $1`
	// removeScheduleSQL marks a declared schedule as removed, because the program would otherwise recreate it, and clears its data. If an
	// operator sets the schedule again, it starts from the declared settings. Plan: primary key lookup.
	removeScheduleSQL = `update trapeze.schedules set removed = true, args = '{}', subject = '', unique_key = '', updated_at = clock_timestamp() where name = $1`
	// pauseScheduleSQL pauses or resumes a schedule. Plan: primary key lookup.
	pauseScheduleSQL = `update trapeze.schedules set paused = $2, updated_at = clock_timestamp() where name = $1`
)

// Plan returns the first occurrence of a schedule after its anchor, or the zero time if there is none. It returns an error if the setting
// is invalid.
type Plan func(s job.ScheduleSetting, anchor time.Time) (time.Time, error)

// values returns a setting as the arguments of createScheduleSQL and setScheduleSQL.
func values(name string, s job.ScheduleSetting, declared json.RawMessage) []any {
	return []any{name, s.Expression, s.Zone, s.Kind, string(s.Args), s.Lane, s.Subject, s.Priority, s.UniqueKey, string(s.Missed), s.CatchUp,
		string(s.Overlap), s.Paused, store.Some(string(declared))}
}

// SetSchedule creates or changes a schedule. New times apply from now on. If an operator has deleted a declared schedule, SetSchedule
// restores the declaration and applies the change to it. If nothing changes, SetSchedule writes no audit entry and no event. It returns
// [job.ErrUnknownSchedule] if c requires an existing schedule and there is none, [job.ErrInvalidSchedule] if a setting is invalid, and
// [job.ErrScheduleMoved] if the current setting differs from c.From.
func SetSchedule(ctx context.Context, s *store.Store, name string, c job.ScheduleChange, plan Plan, actor string) (done job.ScheduleChanged, err error) {
	if err = job.ValidateScheduleName(name); err == nil {
		done, err = setSchedule(ctx, s, name, c, plan, actor)
		if errors.Is(err, errMeanwhile) { // another transaction has created the schedule
			done, err = setSchedule(ctx, s, name, c, plan, actor)
		}
	}
	if err != nil && !errors.Is(err, errDry) {
		return job.ScheduleChanged{}, fmt.Errorf("%w (set schedule %q)", err, name)
	}
	return done, nil
}

func setSchedule(ctx context.Context, s *store.Store, name string, c job.ScheduleChange, plan Plan, actor string) (done job.ScheduleChanged, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		done, err = setScheduleIn(ctx, s, tx, name, c, plan, actor)
		if err == nil && c.DryRun {
			return errDry
		}
		return err
	})
	return done, err
}

func setScheduleIn(ctx context.Context, s *store.Store, tx pgx.Tx, name string, c job.ScheduleChange, plan Plan, actor string) (job.ScheduleChanged, error) {
	done := job.ScheduleChanged{Schedule: name, DryRun: c.DryRun, Changed: []string{}}
	row, err := lockSchedule(ctx, s, tx, name)
	there := err == nil
	base := row.ScheduleSetting
	switch {
	case err != nil && !errors.Is(err, job.ErrUnknownSchedule), c.Existing && (!there || row.Removed):
		if err == nil {
			err = job.ErrUnknownSchedule
		}
		return done, err
	case !there:
		base = job.DefaultSchedule()
	case row.Removed:
		if err := json.Unmarshal(row.Declared, &base); err != nil {
			return done, fmt.Errorf("read the program's declaration: %w", err)
		}
	}
	after := normalize(c.Apply(base))
	base.Args = compact(base.Args)
	if there && !row.Removed && c.From != nil && !equalSettings(base, *c.From) {
		return done, job.ErrScheduleMoved
	}
	done.After, done.Changed = &after, changedFields(base, after)
	if done.Created = !there || row.Removed; !done.Created {
		done.Before = &base
	}
	if !done.Created && len(done.Changed) == 0 {
		return done, nil
	}
	if err := checkSetting(ctx, tx, base, after, plan, done.Created); err != nil {
		return done, err
	}
	if err := writeSchedule(ctx, s, tx, name, there, after, row.Declared, false); err != nil {
		return done, err
	}
	if err := replan(ctx, s, tx, name, plan); err != nil {
		return done, err
	}
	entry := AuditEntry{Actor: actor, Action: "schedule.set", Target: scheduleTarget(name), After: redactArgs(after)}
	if done.Before != nil {
		entry.Before = redactArgs(base)
	}
	return done, operates(ctx, s, tx, operation{AuditEntry: entry, Event: "schedule.changed", About: name})
}

func equalSettings(a, b job.ScheduleSetting) bool {
	return len(changedFields(normalize(a), normalize(b))) == 0
}

// redactArgs returns a copy of a setting for the audit log and the history. The args are replaced, because they may contain secrets that
// only some principals may see.
func redactArgs(s job.ScheduleSetting) job.ScheduleSetting {
	if string(s.Args) != "{}" {
		s.Args = json.RawMessage(`"***"`)
	}
	return s
}

// checkSetting returns all errors in a setting, joined. It does not check unchanged times, because they may be long past.
func checkSetting(ctx context.Context, tx pgx.Tx, before, after job.ScheduleSetting, plan Plan, created bool) error {
	now, err := nowIn(ctx, tx)
	if err != nil {
		return err
	}
	if created || before.Expression != after.Expression || before.Zone != after.Zone {
		_, err = plan(after, now)
	}
	return errors.Join(after.Validate(), err)
}

func scheduleTarget(name string) string { return "schedule " + name }

// writeSchedule creates a schedule, or changes an existing one whose row is locked.
func writeSchedule(ctx context.Context, s *store.Store, tx pgx.Tx, name string, there bool, set job.ScheduleSetting, declared json.RawMessage, removed bool) error {
	if there {
		_, err := tx.Exec(ctx, s.In(setScheduleSQL), append(values(name, set, declared), removed)...)
		return err
	}
	tag, err := tx.Exec(ctx, s.In(createScheduleSQL), values(name, set, declared)...)
	if err == nil && tag.RowsAffected() == 0 {
		err = errMeanwhile
	}
	return err
}

// errMeanwhile means that a concurrent transaction created a schedule with the same name.
var errMeanwhile = errors.New("created concurrently: try again")

// replan computes the next occurrence of a schedule whose times have changed or that was resumed. If the schedule has no more occurrences,
// the submitter's next sweep handles it.
func replan(ctx context.Context, s *store.Store, tx pgx.Tx, name string, plan Plan) error {
	row, err := lockSchedule(ctx, s, tx, name)
	if err != nil || row.Planned {
		return err
	}
	next, err := plan(row.ScheduleSetting, row.Anchor)
	if err != nil || row.Paused {
		return nil
	}
	return PlanSchedules(ctx, s, tx, Planned{Name: name, Next: next})
}

// DeleteSchedule deletes a schedule. A declared schedule stays deleted until it is set again. It returns [job.ErrUnknownSchedule] if the
// schedule does not exist.
func DeleteSchedule(ctx context.Context, s *store.Store, name, actor string) error {
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		row, err := lockSchedule(ctx, s, tx, name)
		if err == nil && row.Removed {
			err = job.ErrUnknownSchedule
		}
		if err != nil {
			return err
		}
		sql := deleteScheduleSQL
		if row.Declared != nil {
			sql = removeScheduleSQL
		}
		if _, err := tx.Exec(ctx, s.In(sql), name); err != nil {
			return err
		}
		return operates(ctx, s, tx, operation{
			AuditEntry: AuditEntry{Actor: actor, Action: "schedule.delete", Target: scheduleTarget(name), Before: redactArgs(row.ScheduleSetting)},
			Event:      "schedule.deleted", About: name,
		})
	})
	if err != nil {
		return fmt.Errorf("delete schedule %q: %w", name, err)
	}
	return nil
}

// PauseSchedule pauses a schedule, or resumes it from the current time on. It reports whether the state changed. It returns
// [job.ErrUnknownSchedule] if the schedule does not exist.
func PauseSchedule(ctx context.Context, s *store.Store, name string, pause bool, plan Plan, actor string) (changed bool, err error) {
	action, event := "schedule.resume", "schedule.resumed"
	if pause {
		action, event = "schedule.pause", "schedule.paused"
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		row, err := lockSchedule(ctx, s, tx, name)
		if err == nil && row.Removed {
			err = job.ErrUnknownSchedule
		}
		if changed = err == nil && row.Paused != pause; !changed {
			return err
		}
		if _, err := tx.Exec(ctx, s.In(pauseScheduleSQL), name, pause); err != nil {
			return err
		}
		if err := replan(ctx, s, tx, name, plan); err != nil {
			return err
		}
		type paused struct {
			Paused bool `json:"paused"`
		}
		return operates(ctx, s, tx, operation{
			AuditEntry: AuditEntry{Actor: actor, Action: action, Target: scheduleTarget(name), Before: paused{row.Paused}, After: paused{pause}},
			Event:      event, About: name,
		})
	})
	if err != nil {
		return false, fmt.Errorf("%s %q: %w", action, name, err)
	}
	return changed, nil
}

// normalize returns a copy of a setting with compact args and with defaults for empty fields.
func normalize(s job.ScheduleSetting) job.ScheduleSetting {
	usual := job.DefaultSchedule()
	if s.Zone == "" {
		s.Zone = usual.Zone
	}
	if s.Missed == "" {
		s.Missed = usual.Missed
	}
	if s.CatchUp == 0 {
		s.CatchUp = usual.CatchUp
	}
	if s.Overlap == "" {
		s.Overlap = usual.Overlap
	}
	s.Args = compact(s.Args)
	return s
}

// compact returns JSON without whitespace. It returns {} for empty input, and returns invalid JSON unchanged.
func compact(args json.RawMessage) json.RawMessage {
	var buffer bytes.Buffer
	if len(bytes.TrimSpace(args)) == 0 {
		return json.RawMessage("{}")
	}
	if json.Compact(&buffer, args) != nil {
		return args
	}
	return buffer.Bytes()
}
