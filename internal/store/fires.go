package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// takeScheduleSQL takes the schedule that has been due longest, among some kinds and but for some names, and keeps others from it until
// the transaction ends: two pods never decide about the same one at a time, and neither waits for the other. What is due is a
// matter of the database's clock. Plan: schedules is small.
const takeScheduleSQL = `
select ` + scheduleColumns + `, s.planned, coalesce($3::timestamptz, clock_timestamp()) ` + firing + `
	and s.kind = any($1::text[]) and s.name <> all($2::text[])
	and (not s.planned or s.next_at <= coalesce($3::timestamptz, clock_timestamp()))
order by s.next_at nulls first, s.name limit 1 for update of s skip locked`

// shortFireSQL bounds how long a decision waits for what others hold, such as a unique key in a transaction of the host's, and how long
// one whose pod is frozen keeps the schedule from the other pods.
const shortFireSQL = `
select set_config('lock_timeout', $1::bigint::text, true), set_config('idle_in_transaction_session_timeout', $2::bigint::text, true)`

// The bounds: of a wait, which others pay for, and of a silence.
const (
	fireWaits = 100 * time.Millisecond
	fireRests = 3 * time.Second
)

// Due is a schedule with fires to decide.
type Due struct {
	job.Schedule
	Planned bool      // NextAt is of its expression
	Now     time.Time // of the database
}

// TakeDue takes the schedule of some kinds that has been due longest, and that is none of those to be passed over; ok is false when there
// is none. The moment is the database's now; at says otherwise, for tests.
func (s *Store) TakeDue(ctx context.Context, tx pgx.Tx, kinds, passOver []string, at *time.Time) (due Due, ok bool, err error) {
	if passOver == nil {
		passOver = []string{}
	}
	list, err := ask(ctx, s, tx, pgx.RowToStructByPos[Due], takeScheduleSQL, kinds, passOver, at)
	if err != nil {
		return due, false, fmt.Errorf("take a due schedule: %w", err)
	}
	if len(list) == 0 {
		return due, false, nil
	}
	if _, err := tx.Exec(ctx, shortFireSQL, fireWaits.Milliseconds(), fireRests.Milliseconds()); err != nil {
		return due, false, fmt.Errorf("take schedule %q: %w", list[0].Name, err)
	}
	return list[0], true, nil
}

// nextFireSQL reads when the next schedule of some kinds fires that is not due yet, and the clock that this is of: one that is due and
// cannot be decided must not hide the others. Plan: schedules is small.
const nextFireSQL = `
select n.now, (select min(s.next_at) ` + firing + ` and s.planned and s.next_at > n.now and s.kind = any($1::text[]))
from (select clock_timestamp() as now) n`

// NextFire reads when the next schedule of some kinds fires (nil: none does) of those that are not due, and what the database's clock says
// now.
func (s *Store) NextFire(ctx context.Context, kinds []string) (now time.Time, next *time.Time, err error) {
	type moments struct {
		Now  time.Time
		Next *time.Time
	}
	list, err := rows(ctx, s, pgx.RowToStructByPos[moments], nextFireSQL, kinds)
	if err != nil {
		return now, nil, fmt.Errorf("read the next fire: %w", err)
	}
	return list[0].Now, list[0].Next, nil
}

// scheduleActiveSQL tells whether one of the latest jobs of a schedule, or what follows from it, has not ended.
// Plan: schedule_fires_with_jobs backwards, twenty rows; primary keys and jobs_of_pipeline for each.
const scheduleActiveSQL = `
select exists (
	select from (
		select f.job_id from trapeze.schedule_fires f where f.schedule = $1 and f.job_id is not null order by f.fire_at desc limit 20
	) f
	where coalesce((select p.status from trapeze.pipeline p where p.id = f.job_id), '') = 'running'
)`

// ScheduleActive reports whether a job of a schedule, or what follows from it, has not ended.
func (s *Store) ScheduleActive(ctx context.Context, tx pgx.Tx, name string) (active bool, err error) {
	if err := tx.QueryRow(ctx, s.in(scheduleActiveSQL), name).Scan(&active); err != nil {
		return false, fmt.Errorf("look for the jobs of schedule %q: %w", name, err)
	}
	return active, nil
}

const (
	// insertFiresSQL decides fires: whose row goes in decides, and nobody else ever will. Plan: one insert a fire.
	insertFiresSQL = `
insert into trapeze.schedule_fires (schedule, fire_at, outcome, manual, missed, job_id, message)
select $1, w.fire_at, w.outcome, w.manual, w.missed, w.job_id, w.message
from unnest($2::timestamptz[], $3::text[], $4::boolean[], $5::int[], $6::bigint[], $7::text[])
	as w(fire_at, outcome, manual, missed, job_id, message)
on conflict (schedule, fire_at) do nothing returning fire_at`
	// settleFiresSQL says of fires that this transaction decided why they made no job. Plan: primary key.
	settleFiresSQL = `
update trapeze.schedule_fires f set outcome = w.outcome, job_id = null, message = w.message
from unnest($2::timestamptz[], $3::text[], $4::text[]) as w(fire_at, outcome, message)
where f.schedule = $1 and f.fire_at = w.fire_at`
	// scheduleEventsSQL writes fires into the history of everything. Plan: inserts.
	scheduleEventsSQL = `
insert into trapeze.job_events (event_no, boot, event, actor, message, fields)
select w.n, $1::uuid, case w.outcome when 'missed' then 'schedule.missed' else 'schedule.fired' end, $2, $3, w.fields::json
from unnest($4::text[], $5::text[]) with ordinality as w(outcome, fields, n)`
)

// InsertFires writes fires of one schedule down, and returns those that were not decided before.
func (s *Store) InsertFires(ctx context.Context, tx pgx.Tx, name string, list []job.Fire) ([]job.Fire, error) {
	var (
		at       = make([]time.Time, len(list))
		outcomes = make([]string, len(list))
		manual   = make([]bool, len(list))
		missed   = make([]int, len(list))
		ids      = make([]*int64, len(list))
		messages = make([]string, len(list))
	)
	for i, f := range list {
		at[i], outcomes[i], manual[i], missed[i], ids[i], messages[i] = f.FireAt, string(f.Outcome), f.Manual, f.Missed, f.JobID, f.Message
	}
	found, err := ask(ctx, s, tx, pgx.RowTo[time.Time], insertFiresSQL, name, at, outcomes, manual, missed, ids, messages)
	if err != nil {
		return nil, fmt.Errorf("decide fires of schedule %q: %w", name, err)
	}
	ours := make(map[int64]bool, len(found))
	for _, t := range found {
		ours[t.UnixMicro()] = true
	}
	var decided []job.Fire
	for _, f := range list {
		if ours[f.FireAt.UnixMicro()] {
			decided = append(decided, f)
		}
	}
	return decided, nil
}

// SettleFires says of fires that this transaction decided that they made no job, and why.
func (s *Store) SettleFires(ctx context.Context, tx pgx.Tx, name string, list []job.Fire) error {
	at, outcomes, messages := make([]time.Time, len(list)), make([]string, len(list)), make([]string, len(list))
	for i, f := range list {
		at[i], outcomes[i], messages[i] = f.FireAt, string(f.Outcome), f.Message
	}
	if _, err := tx.Exec(ctx, s.in(settleFiresSQL), name, at, outcomes, messages); err != nil {
		return fmt.Errorf("decide fires of schedule %q: %w", name, err)
	}
	return nil
}

// TellFires writes fires into the history of everything: those that made a job, and those that were missed.
func (s *Store) TellFires(ctx context.Context, tx pgx.Tx, boot *string, actor, name string, list []job.Fire) error {
	var outcomes, fields []string
	for _, f := range list {
		if f.Outcome != job.FireFired && f.Outcome != job.FireMissed {
			continue
		}
		raw, err := json.Marshal(struct {
			Schedule string    `json:"schedule"`
			FireAt   time.Time `json:"fire_at"`
			JobID    *int64    `json:"job_id,string"`
			Missed   int       `json:"missed,omitempty"`
		}{name, f.FireAt, f.JobID, f.Missed})
		if err != nil {
			return err
		}
		outcomes, fields = append(outcomes, string(f.Outcome)), append(fields, string(raw))
	}
	if len(outcomes) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, s.in(scheduleEventsSQL), boot, actor, name, outcomes, fields); err != nil {
		return fmt.Errorf("tell fires of schedule %q: %w", name, err)
	}
	return nil
}

// AuditTrigger writes down that an operator made a schedule fire, in the transaction in which it does.
func (s *Store) AuditTrigger(ctx context.Context, tx pgx.Tx, actor string, f job.Fire) error {
	return s.auditIn(ctx, tx, Deed{Actor: actor, Action: "schedule.trigger", Target: scheduleTarget(f.Schedule), After: f})
}
