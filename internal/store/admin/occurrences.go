package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// takeSchedulesSQL locks the schedules of the given kinds that have been due longest, except those with the given names. The locks last
// until the transaction ends. As a result, two pods never process the same schedule concurrently, and neither waits for the other. The
// database's clock determines which schedules are due. Plan: schedules_due from its beginning, stops at the limit or at the first schedule
// that is not due.
const takeSchedulesSQL = `
select ` + scheduleColumns + `, s.planned, (select coalesce($3::timestamptz, clock_timestamp())) ` + store.Firing + `
	and s.kind = any($1::text[]) and s.name <> all($2::text[]) and ` + store.DueAt + ` <= (select coalesce($3::timestamptz, clock_timestamp()))
order by ` + store.DueAt + `, s.name limit $4 for update of s skip locked`

// shortFireSQL limits how long a transaction that processes schedules waits for locks, such as the lock on a unique key held by the host
// program's transaction. It also limits how long a frozen pod can keep schedules locked.
const shortFireSQL = `
select set_config('lock_timeout', $1::bigint::text, true), set_config('idle_in_transaction_session_timeout', $2::bigint::text, true)`

// fireWaits is the lock timeout. It is short, because a waiting transaction delays other schedules. fireRests is the timeout for an idle
// transaction.
const (
	fireWaits = 100 * time.Millisecond
	fireRests = 3 * time.Second
)

// Due is a schedule with due occurrences, together with the time at which it was read.
type Due struct {
	job.Schedule
	Planned bool      // whether NextAt has been computed from the expression
	Now     time.Time // the current time on the database's clock
}

// TakeDue locks and returns up to limit schedules of the given kinds that have been due longest, except for those in passOver. Tests can
// replace the database's clock with at.
func TakeDue(ctx context.Context, s *store.Store, tx pgx.Tx, kinds, passOver []string, at *time.Time, limit int) ([]Due, error) {
	if passOver == nil {
		passOver = []string{}
	}
	list, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[Due], takeSchedulesSQL, kinds, passOver, at, limit)
	if err == nil && len(list) > 0 {
		_, err = tx.Exec(ctx, shortFireSQL, fireWaits.Milliseconds(), fireRests.Milliseconds())
	}
	return list, text.Wrap(err, "claim due schedules")
}

// nextFireSQL returns the current time on the database's clock, and the time of the next occurrence among schedules of the given kinds. It
// skips occurrences that are already due, so that a schedule that cannot be processed does not hide the others. Plan: schedules_due from
// now on, up to the first of the given kinds.
const nextFireSQL = `
select n.now, (select s.next_at ` + store.Firing + ` and s.kind = any($1::text[]) and ` + store.DueAt + ` > n.now order by ` + store.DueAt + ` limit 1)
from (select clock_timestamp() as now offset 0) n`

// NextFire returns the current time on the database's clock, and the time of the next occurrence that is not yet due, among schedules of
// the given kinds. next is nil if there is no such occurrence.
func NextFire(ctx context.Context, s *store.Store, kinds []string) (now time.Time, next *time.Time, err error) {
	type moments struct {
		Now  time.Time
		Next *time.Time
	}
	read, err := view.One(store.Rows(ctx, s, pgx.RowToStructByPos[moments], nextFireSQL, kinds))
	return read.Now, read.Next, text.Wrap(err, "read the next occurrence")
}

// schedulesActiveSQL finds the schedules for which a recent job, or a later step of one, is unfinished. Plan: schedule_occurrences_with_jobs
// backwards for each, twenty rows; primary key lookups and jobs_of_pipeline for each.
const schedulesActiveSQL = `
select n.name from unnest($1::text[]) as n(name)
where exists (
	select from (
		select f.job_id from trapeze.schedule_occurrences f where f.schedule = n.name and f.job_id is not null order by f.fire_at desc limit 20
	) f
	where coalesce((select p.status from trapeze.pipeline p where p.id = f.job_id), '') = 'running'
)`

// SchedulesActive returns which of the given schedules have an unfinished job. Later steps of a schedule's jobs also count.
func SchedulesActive(ctx context.Context, s *store.Store, tx pgx.Tx, names []string) (map[string]bool, error) {
	list, err := store.Query(ctx, s, tx, pgx.RowTo[string], schedulesActiveSQL, names)
	if err != nil {
		return nil, fmt.Errorf("find the jobs of schedules: %w", err)
	}
	active := make(map[string]bool, len(list))
	for _, name := range list {
		active[name] = true
	}
	return active, nil
}

const (
	// insertOccurrencesSQL inserts one row per occurrence. The transaction that inserts an occurrence's row is the only one that may submit a job
	// for it. Plan: one insert per occurrence.
	insertOccurrencesSQL = `
insert into trapeze.schedule_occurrences (schedule, fire_at, outcome, manual, missed, job_id, message)
select w.schedule, w.fire_at, w.outcome, w.manual, w.missed, w.job_id, w.message
from unnest($1::text[], $2::timestamptz[], $3::text[], $4::boolean[], $5::int[], $6::bigint[], $7::text[])
	as w(schedule, fire_at, outcome, manual, missed, job_id, message)
on conflict (schedule, fire_at) do nothing returning schedule, fire_at`
	// settleOccurrencesSQL records why occurrences that this transaction has settled did not submit a job. Plan: primary key lookup.
	settleOccurrencesSQL = `
update trapeze.schedule_occurrences f set outcome = w.outcome, job_id = null, message = w.message
from unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[]) as w(schedule, fire_at, outcome, message)
where f.schedule = w.schedule and f.fire_at = w.fire_at`
	// scheduleEventsSQL writes the events of occurrences. Plan: inserts one row per event.
	scheduleEventsSQL = `
insert into trapeze.job_events (event_no, pod, event, actor, message, fields)
select w.n, $1::uuid, case w.outcome when 'missed' then 'schedule.missed' else 'schedule.fired' end, $2, w.schedule, w.fields::json
from unnest($3::text[], $4::text[], $5::text[]) with ordinality as w(schedule, outcome, fields, n)`
)

// fireKey is the primary key of an occurrence.
type fireKey struct {
	Schedule string
	FireAt   int64 // in microseconds, the resolution of the database
}

func keyOf(f job.Occurrence) fireKey { return fireKey{f.Schedule, f.FireAt.UnixMicro()} }

// InsertOccurrences inserts occurrences, and returns those that no other transaction had already inserted.
func InsertOccurrences(ctx context.Context, s *store.Store, tx pgx.Tx, list []job.Occurrence) ([]job.Occurrence, error) {
	var (
		names    = make([]string, len(list))
		at       = make([]time.Time, len(list))
		outcomes = make([]string, len(list))
		manual   = make([]bool, len(list))
		missed   = make([]int, len(list))
		ids      = make([]*int64, len(list))
		messages = make([]string, len(list))
	)
	for i, f := range list {
		names[i], at[i], outcomes[i], manual[i] = f.Schedule, f.FireAt, string(f.Outcome), f.Manual
		missed[i], ids[i], messages[i] = f.Missed, f.JobID, f.Message
	}
	scan := func(row pgx.CollectableRow) (k fireKey, err error) {
		var t time.Time
		err = row.Scan(&k.Schedule, &t)
		k.FireAt = t.UnixMicro()
		return k, err
	}
	found, err := store.Query(ctx, s, tx, scan, insertOccurrencesSQL, names, at, outcomes, manual, missed, ids, messages)
	if err != nil {
		return nil, fmt.Errorf("record schedule occurrences: %w", err)
	}
	ours := make(map[fireKey]bool, len(found))
	for _, k := range found {
		ours[k] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(f job.Occurrence) bool { return !ours[keyOf(f)] }), nil
}

// SettleOccurrences records why occurrences that this transaction has settled did not submit a job.
func SettleOccurrences(ctx context.Context, s *store.Store, tx pgx.Tx, list []job.Occurrence) error {
	names, at := make([]string, len(list)), make([]time.Time, len(list))
	outcomes, messages := make([]string, len(list)), make([]string, len(list))
	for i, f := range list {
		names[i], at[i], outcomes[i], messages[i] = f.Schedule, f.FireAt, string(f.Outcome), f.Message
	}
	_, err := tx.Exec(ctx, s.In(settleOccurrencesSQL), names, at, outcomes, messages)
	return text.Wrap(err, "record schedule occurrences")
}

// WriteFireEvents writes events for the occurrences that submitted jobs and for those that were missed.
func WriteFireEvents(ctx context.Context, s *store.Store, tx pgx.Tx, podID *string, actor string, list []job.Occurrence) error {
	var names, outcomes, fields []string
	for _, f := range list {
		if f.Outcome != job.OccurrenceFired && f.Outcome != job.OccurrenceMissed {
			continue
		}
		raw, err := json.Marshal(struct {
			Schedule string    `json:"schedule"`
			FireAt   time.Time `json:"fire_at"`
			JobID    *int64    `json:"job_id,string"`
			Missed   int       `json:"missed,omitempty"`
		}{f.Schedule, f.FireAt, f.JobID, f.Missed})
		if err != nil {
			return err
		}
		names, outcomes, fields = append(names, f.Schedule), append(outcomes, string(f.Outcome)), append(fields, string(raw))
	}
	if len(outcomes) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, s.In(scheduleEventsSQL), podID, actor, names, outcomes, fields)
	return text.Wrap(err, "write the events of schedules")
}

// AuditTrigger writes the audit entry for a schedule that an operator has triggered, in the transaction that triggers it.
func AuditTrigger(ctx context.Context, s *store.Store, tx pgx.Tx, actor string, f job.Occurrence) error {
	return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "schedule.trigger", Target: scheduleTarget(f.Schedule), After: f})
}
