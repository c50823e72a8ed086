package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

const historyDays = 10

// keepAll retains finished jobs and events for ever.
var keepAll = runner.Options{Slots: 100, RetainSucceeded: -1, RetainFailed: -1, RetainCancelled: -1, RetainEvents: -1}

// history fills days before today with finished jobs, their pipelines and events.
type history struct {
	g      *rig
	perDay int
	first  time.Time // start of day 0
	next   int       // the next day to fill
	say    func(format string, args ...any)
}

func newHistory(g *rig, perDay int, say func(string, ...any)) *history {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	return &history{g: g, perDay: perDay, first: today.AddDate(0, 0, -historyDays), say: say}
}

func (h *history) day(n int) time.Time { return h.first.AddDate(0, 0, n) }

// historyDaySQL creates the partitions of a day.
const historyDaySQL = `
select trapeze.create_day(parent, '%s') from unnest(array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events']) parent`

// historyJobsSQL fills part of a day in one transaction. It inserts jobs, their ends, and the pipelines of chains. The third step of every
// hundredth chain failed, and one job in a thousand was cancelled.
const historyJobsSQL = `
with job as materialized (
	select $1::bigint + n as id, n, case when n % 10 < 3 then n % 10 else 0 end as step,
		$2::timestamptz + n * ($3::float8 * interval '1 second') as at
	from generate_series($4::int, $5::int - 1) n
), written as (
	insert into trapeze.jobs (id, kind, lane, args, pipeline_id, parent_id, step, created_at, xid)
	select id, 'kind.' || n % 20, 'default', json_build_object('file', 'in/' || n || '.csv', 'rows', n % 100000, 'retry', false),
		id - step, case when step > 0 then id - 1 end, step, at, pg_current_xact_id() from job
), chains as (
	insert into trapeze.pipelines (id, name, created_at) select id, 'nightly', at from job where n % 10 = 0
)
insert into trapeze.done (id, state, outcome, reason, result, error, fence, pod, event_no, epoch, attempt, crashes, priority, lane,
	started_at, finished_at, xid, claim_xid)
select id, s.state, case when s.state = 'succeeded' then 'ok' else 'error' end, case s.state when 'succeeded' then 'ok' when 'failed' then 'attempts' else s.state end,
	case when s.state = 'succeeded' then json_build_object('rows', n % 100000) end, case when s.state = 'failed' then 'no such file' end,
	1, '00000000-0000-4000-8000-000000000001', 3, 1, 1, 0, 0, 'default', at, at + $3::float8 * interval '1 second', pg_current_xact_id(), pg_current_xact_id()
from job cross join lateral (select case n % 1000 when 2 then 'failed' when 505 then 'cancelled' else 'succeeded' end as state) s`

// historyEventsSQL inserts the three events of each job. Twenty jobs share a row, as in the batches of a busy pod.
const historyEventsSQL = `
insert into trapeze.job_events (jobs, event_nos, fences, pod, from_state, to_state, event, at)
select array_agg($1::bigint + n order by n), array_agg(e.no), array_agg(1::bigint), '00000000-0000-4000-8000-000000000001',
	e.was, e.now, e.event, min($2::timestamptz + n * ($3::float8 * interval '1 second'))
from generate_series($4::int, $5::int - 1) n
cross join (values (1, '', 'pending', 'job.enqueued'), (2, 'pending', 'running', 'job.claimed'), (3, 'running', 'succeeded', 'job.succeeded')) e(no, was, now, event)
group by n / 20, e.no, e.was, e.now, e.event`

// fill fills all days.
func (h *history) fill(ctx context.Context) error {
	for h.next < historyDays {
		if err := h.fillDay(ctx); err != nil {
			return err
		}
	}
	return h.g.tidy(ctx)
}

// fillDay fills the next day, in transactions of 10,000 jobs.
func (h *history) fillDay(ctx context.Context) error {
	const atOnce = 10_000
	h.say("history: day %d", h.next+1)
	day := h.day(h.next)
	conn, err := pgx.Connect(ctx, h.g.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `set synchronous_commit = off`); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(historyDaySQL, day.Format(time.DateOnly))); err != nil {
		return err
	}
	var base int64
	if err := conn.QueryRow(ctx, `select setval('trapeze.job_ids', nextval('trapeze.job_ids') + $1) - $1`, h.perDay).Scan(&base); err != nil {
		return err
	}
	apart := 86_000 / float64(h.perDay) // seconds between jobs
	for from := 0; from < h.perDay; from += atOnce {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			args := []any{base, day, apart, from, min(from+atOnce, h.perDay)}
			if _, err := tx.Exec(ctx, historyJobsSQL, args...); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, historyEventsSQL, args...)
			return err
		})
		if err != nil {
			return err
		}
	}
	h.next++
	return nil
}
