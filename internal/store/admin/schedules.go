package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// settingColumns lists the columns that hold a schedule's settings, and scheduleColumns lists all columns.
const (
	settingColumns  = `s.expression, s.zone, s.kind, s.args, s.lane, s.subject, s.priority, s.unique_key, s.missed, s.catch_up, s.overlap, s.paused`
	scheduleColumns = `s.name, ` + settingColumns + `, s.declared is not null, s.anchor, s.next_at, s.error, s.created_at, s.updated_at`
)

// schedulesSQL reads all schedules, ordered by name, or a single one. Plan: one pass over schedules, which is small.
const schedulesSQL = `
select ` + scheduleColumns + ` from trapeze.schedules s where not s.removed and ($1::text is null or s.name = $1) order by s.name`

// Schedules returns all schedules, ordered by name.
func Schedules(ctx context.Context, s *store.Store) ([]job.Schedule, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Schedule], schedulesSQL, nil)
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", err)
	}
	return list, nil
}

// Schedule returns one schedule. It returns [job.ErrUnknownSchedule] if the schedule does not exist.
func Schedule(ctx context.Context, s *store.Store, name string) (job.Schedule, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Schedule], schedulesSQL, name)
	if err == nil && len(list) == 0 {
		err = job.ErrUnknownSchedule
	}
	if err != nil {
		return job.Schedule{}, fmt.Errorf("read schedule %q: %w", name, err)
	}
	return list[0], nil
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
func LastOccurrences(ctx context.Context, s *store.Store, names []string, before time.Time, limit int) (map[string][]job.Fire, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Fire], lastOccurrencesSQL, names, limit, store.Some(before))
	if err != nil {
		return nil, fmt.Errorf("list occurrences: %w", err)
	}
	occurrences := make(map[string][]job.Fire, len(names))
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
// database's clock. It returns [job.ErrUnknownSchedule] if the schedule does not exist, and [job.ErrScheduleMoved] if as is not nil and
// differs from the current setting.
func LockSchedule(ctx context.Context, s *store.Store, tx pgx.Tx, name string, as *job.ScheduleSetting) (schedule job.Schedule, now time.Time, err error) {
	row, err := lockSchedule(ctx, s, tx, name)
	if err == nil && row.Removed {
		err = job.ErrUnknownSchedule
	}
	if err == nil && as != nil && !equalSettings(row.ScheduleSetting, *as) {
		err = job.ErrScheduleMoved
	}
	if err == nil {
		now, err = nowIn(ctx, tx)
	}
	if err != nil {
		return schedule, now, fmt.Errorf("read schedule %q: %w", name, err)
	}
	return row.Schedule, now, nil
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
	if _, err := tx.Exec(ctx, s.In(planSchedulesSQL), names, next, wrong); err != nil {
		return fmt.Errorf("plan schedules: %w", err)
	}
	return nil
}

// scheduleWrongSQL sets a schedule's error without changing its next occurrence. The caller has locked the row. Plan: primary key lookup;
// HOT update.
const scheduleWrongSQL = `update trapeze.schedules set error = $2 where name = $1 and error <> $2`

// ScheduleWrong sets a schedule's error and reports whether it has changed. The caller must have locked the schedule's row.
func ScheduleWrong(ctx context.Context, s *store.Store, tx pgx.Tx, name, wrong string) (changed bool, err error) {
	tag, err := tx.Exec(ctx, s.In(scheduleWrongSQL), name, wrong)
	if err != nil {
		return false, fmt.Errorf("set the error of schedule %q: %w", name, err)
	}
	return tag.RowsAffected() > 0, nil
}

// nowIn returns the current time on the database's clock.
func nowIn(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	err = tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now)
	return now, err
}
