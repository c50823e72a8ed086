package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// settingColumns lists the columns that hold a schedule's settings, and scheduleColumns lists all columns.
const (
	settingColumns  = `s.expression, s.zone, s.kind, s.args, s.lane, s.subject, s.key, s.priority, s.unique_key, s.missed, s.catch_up, s.overlap, s.paused`
	scheduleColumns = `s.name, ` + settingColumns + `, s.declared is not null, s.anchor, s.next_at, s.error, s.created_at, s.updated_at`
)

// schedulesSQL reads all schedules, ordered by name, or a single one. Plan: one pass over schedules, which is small.
const schedulesSQL = `
select ` + scheduleColumns + ` from trapeze.schedules s where not s.removed and ($1::text is null or s.name = $1) order by s.name`

// Schedules returns all schedules, ordered by name.
func Schedules(ctx context.Context, s *store.Store) ([]job.Schedule, error) {
	return view.Rows(ctx, s, "list schedules", pgx.RowToStructByPos[job.Schedule], schedulesSQL, nil)
}

// Schedule returns one schedule. It returns [job.ErrUnknownSchedule] if the schedule does not exist.
func Schedule(ctx context.Context, s *store.Store, name string) (job.Schedule, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Schedule], schedulesSQL, name)
	if err == nil && len(list) == 0 {
		err = job.ErrUnknownSchedule
	}
	found, err := view.One(list, err)
	return found, text.Wrap(err, "read schedule %q", name)
}

// lastOccurrencesSQL lists the latest occurrences of schedules, each with the current state of its job. Plan: schedule_occurrences_pkey backwards,
// stops at the limit; the job's primary keys and the id index of done for each.
const lastOccurrencesSQL = `
select f.schedule, f.fire_at, f.decided_at, f.outcome, f.manual, f.missed, f.job_id, coalesce(v.state, ''),
	extract(epoch from v.finished_at - v.started_at)::float8, f.message
from unnest($1::text[]) with ordinality as n(name, place)
cross join lateral (
	select l.schedule, l.fire_at, l.decided_at, l.outcome, l.manual, l.missed, l.job_id, l.message from trapeze.schedule_occurrences l
	where l.schedule = n.name and l.fire_at < coalesce($3::timestamptz, 'infinity') order by l.fire_at desc limit $2
) f
left join lateral (
	select j.state, j.started_at, j.finished_at from trapeze.job j where j.id = f.job_id order by j.epoch desc limit 1
) v on true
order by n.place, f.fire_at desc`

// LastOccurrences returns up to limit occurrences of each schedule, newest first. If before is not zero, it returns only earlier occurrences.
func LastOccurrences(ctx context.Context, s *store.Store, names []string, before time.Time, limit int) (map[string][]job.Occurrence, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Occurrence], lastOccurrencesSQL, names, limit, store.Some(before))
	if err != nil {
		return nil, fmt.Errorf("list occurrences: %w", err)
	}
	occurrences := make(map[string][]job.Occurrence, len(names))
	for _, f := range list {
		occurrences[f.Schedule] = append(occurrences[f.Schedule], f)
	}
	return occurrences, nil
}

// lockScheduleSQL reads and locks a schedule, even a removed one, so that it neither changes nor fires until the transaction ends. Plan:
// primary key lookup.
const lockScheduleSQL = `
select ` + scheduleColumns + `, s.declared, s.removed, s.planned from trapeze.schedules s where s.name = $1 for update`

// scheduleRow is a row of the schedules table.
type scheduleRow struct {
	job.Schedule
	Declared json.RawMessage // nil if the program does not declare the schedule
	Removed  bool
	Planned  bool
}

// lockSchedule reads and locks a schedule's row, even if the schedule was removed.
func lockSchedule(ctx context.Context, s *store.Store, tx pgx.Tx, name string) (scheduleRow, error) {
	return store.QueryOne[scheduleRow](ctx, s, tx, job.ErrUnknownSchedule, lockScheduleSQL, name)
}

// LockSchedule reads and locks a schedule, so that it neither changes nor fires until the transaction ends. It also returns the time on the
// database's clock. It returns [job.ErrUnknownSchedule] if the schedule does not exist, and [job.ErrConflict] if as is not nil and
// differs from the current setting.
func LockSchedule(ctx context.Context, s *store.Store, tx pgx.Tx, name string, as *job.ScheduleSetting) (schedule job.Schedule, now time.Time, err error) {
	row, err := lockSchedule(ctx, s, tx, name)
	if err == nil && row.Removed {
		err = job.ErrUnknownSchedule
	}
	if err == nil && as != nil && !equalSettings(row.ScheduleSetting, *as) {
		err = fmt.Errorf("%w: schedule %q", job.ErrConflict, name)
	}
	if err == nil {
		now, err = nowIn(ctx, tx)
	}
	return row.Schedule, now, text.Wrap(err, "read schedule %q", name)
}

// planSchedulesSQL sets the next occurrence and the error of schedules whose rows are locked. Plan: primary key lookup.
const planSchedulesSQL = `
update trapeze.schedules s set next_at = w.next_at, planned = true, error = w.error
from unnest($1::text[], $2::timestamptz[], $3::text[]) as w(name, next_at, error) where s.name = w.name`

// Planned contains the next occurrence of a schedule and the schedule's error. Next is zero if there are no more occurrences.
type Planned struct {
	Name  string
	Next  time.Time
	Wrong string
}

// PlanSchedules sets the next occurrence and the error of schedules whose rows are locked.
func PlanSchedules(ctx context.Context, s *store.Store, tx pgx.Tx, list ...Planned) error {
	names, next, wrong := make([]string, len(list)), make([]*time.Time, len(list)), make([]string, len(list))
	for i, p := range list {
		names[i], next[i], wrong[i] = p.Name, store.Some(p.Next), p.Wrong
	}
	_, err := tx.Exec(ctx, s.In(planSchedulesSQL), names, next, wrong)
	return text.Wrap(err, "plan schedules")
}

// scheduleWrongSQL sets a schedule's error without changing its next occurrence. The caller has locked the row. Plan: primary key lookup;
// HOT update.
const scheduleWrongSQL = `update trapeze.schedules set error = $2 where name = $1 and error <> $2`

// ScheduleWrong sets a schedule's error and reports whether it has changed. The caller must have locked the schedule's row.
func ScheduleWrong(ctx context.Context, s *store.Store, tx pgx.Tx, name, wrong string) (changed bool, err error) {
	tag, err := tx.Exec(ctx, s.In(scheduleWrongSQL), name, wrong)
	return tag.RowsAffected() > 0, text.Wrap(err, "set the error of schedule %q", name)
}

// nowIn returns the current time on the database's clock.
func nowIn(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	err = tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now)
	return now, err
}

const (
	// createScheduleSQL creates a schedule unless its name is taken. Plan: one insert.
	createScheduleSQL = `
insert into trapeze.schedules (name, expression, zone, kind, args, lane, subject, key, priority, unique_key, missed, catch_up, overlap, paused, declared)
values ($1, $2, $3, $4, $5::text::json, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::json)
on conflict (name) do nothing`
	// setScheduleSQL changes a schedule whose row is locked. If its times change, the schedule must be replanned. Plan: primary key lookup.
	setScheduleSQL = `
update trapeze.schedules set expression = $2, zone = $3, kind = $4, args = $5::text::json, lane = $6, subject = $7, key = $8, priority = $9,
	unique_key = $10, missed = $11, catch_up = $12, overlap = $13, paused = $14, declared = $15::text::json, removed = $16,
	updated_at = clock_timestamp()
where name = $1`
	// deleteScheduleSQL deletes a schedule. Its occurrences are kept for the usual retention period. Plan: primary key lookup.
	deleteScheduleSQL = `delete from trapeze.schedules where name = $1`
	// removeScheduleSQL marks a declared schedule as removed, because the program would otherwise recreate it, and clears its data. If an
	// operator sets the schedule again, it starts from the declared settings. Plan: primary key lookup.
	removeScheduleSQL = `update trapeze.schedules set removed = true, args = '{}', subject = '', key = '', unique_key = '', updated_at = clock_timestamp() where name = $1`
	// pauseScheduleSQL pauses or resumes a schedule. Plan: primary key lookup.
	pauseScheduleSQL = `update trapeze.schedules set paused = $2, updated_at = clock_timestamp() where name = $1`
)

// Plan returns the first occurrence of a schedule after its anchor, or the zero time if there is none. It returns an error if the setting
// is invalid.
type Plan func(s job.ScheduleSetting, anchor time.Time) (time.Time, error)

// values returns a setting as the arguments of createScheduleSQL and setScheduleSQL.
func values(name string, s job.ScheduleSetting, declared json.RawMessage) []any {
	return []any{name, s.Expression, s.Zone, s.Kind, string(s.Args), s.Lane, s.Subject, s.Key, s.Priority, s.UniqueKey, string(s.Missed), s.CatchUp,
		string(s.Overlap), s.Paused, store.Some(string(declared))}
}

// SetSchedule creates or changes a schedule. New times apply from now on. If an operator has deleted a declared schedule, SetSchedule
// restores the declaration and applies the change to it. If nothing changes, SetSchedule writes no audit entry and no event. It returns
// [job.ErrUnknownSchedule] if c requires an existing schedule and there is none, [job.ErrInvalidSchedule] if a setting is invalid, and
// [job.ErrConflict] if the current setting differs from c.From.
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
		return done, fmt.Errorf("%w: schedule %q", job.ErrConflict, name)
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
	return text.Wrap(err, "delete schedule %q", name)
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
	return changed, text.Wrap(err, "%s %q", action, name)
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

// DeclareSchedule creates a schedule that the program declares, or applies the settings that the program has changed. It keeps settings
// that an operator has changed, and does not restore a schedule that an operator has deleted. It returns the names of the changed settings,
// or nil if there are none.
func DeclareSchedule(ctx context.Context, s *store.Store, name string, d job.ScheduleSetting) (changed []string, err error) {
	changed, err = inTx(ctx, s, func(tx pgx.Tx) ([]string, error) { return declareIn(ctx, s, tx, name, normalize(d)) })
	if errors.Is(err, errMeanwhile) {
		return DeclareSchedule(ctx, s, name, d) // another pod that is starting has created the schedule
	}
	return changed, text.Wrap(err, "declare schedule %q", name)
}

func declareIn(ctx context.Context, s *store.Store, tx pgx.Tx, name string, d job.ScheduleSetting) ([]string, error) {
	declared, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	row, err := lockSchedule(ctx, s, tx, name)
	there := err == nil
	if err != nil && !errors.Is(err, job.ErrUnknownSchedule) {
		return nil, err
	}
	was, after := normalize(row.ScheduleSetting), d
	if there {
		if after, err = mergeDeclared(was, row.Declared, d); err != nil {
			return nil, err
		}
	}
	changed := changedFields(was, after)
	if there && len(changed) == 0 && same(row.Declared, declared) {
		return nil, nil
	}
	if err := writeSchedule(ctx, s, tx, name, there, after, declared, row.Removed); err != nil {
		return nil, err
	}
	if len(changed) == 0 || row.Removed {
		return nil, nil
	}
	entry := AuditEntry{Actor: "system", Action: "schedule.set", Target: scheduleTarget(name), After: redactArgs(after)}
	if there {
		entry.Before = redactArgs(was)
	}
	return changed, operates(ctx, s, tx, operation{AuditEntry: entry, Event: "schedule.changed", About: name})
}

// mergeDeclared applies the declaration d to is, the current setting. Fields that equal the program's previous declaration, last, take
// their values from d. Other fields were changed by an operator and stay unchanged. If last is nil, the program has not declared the
// schedule before, and all fields stay unchanged.
func mergeDeclared(is job.ScheduleSetting, last json.RawMessage, d job.ScheduleSetting) (job.ScheduleSetting, error) {
	if last == nil {
		return is, nil
	}
	var before job.ScheduleSetting
	if err := json.Unmarshal(last, &before); err != nil {
		return is, fmt.Errorf("decode the previous declaration: %w", err)
	}
	before = normalize(before)
	after := is
	for i := range reflect.TypeFor[job.ScheduleSetting]().NumField() {
		operators, programs := reflect.ValueOf(&after).Elem().Field(i), reflect.ValueOf(before).Field(i)
		if reflect.DeepEqual(operators.Interface(), programs.Interface()) {
			operators.Set(reflect.ValueOf(d).Field(i))
		}
	}
	return after, nil
}

func same(a, b json.RawMessage) bool { return string(compact(a)) == string(compact(b)) }
