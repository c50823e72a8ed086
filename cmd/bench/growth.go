package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// These constants define the length of the history. The pods prune nothing, because the workload prunes the history itself to measure the
// cost.
const (
	growthDays      = 10 // days of finished jobs
	growthEventDays = 30
	growthRounds    = 5 // number of days that are filled and pruned after the first measurement
	growthLater     = 2 // the number of additional days for which failed and cancelled jobs are kept
)

var growthKeeps = runner.Options{Slots: 100, RetainSucceeded: -1, RetainFailed: -1, RetainCancelled: -1, RetainEvents: -1}

// growth fills a database with a long history and compares it with an empty one. It then simulates the passing of several days.
func (b *lab) growth(ctx context.Context) (l line, err error) {
	perDay := b.size(10_000_000) / growthDays
	l = line{What: fmt.Sprintf("%d days of %d finished jobs each (a third of them in chains of three, one in 500 failed or cancelled) and %d days of events, against an empty database on the same server, in alternating rounds; then %d days pass, and the oldest are pruned under load",
		growthDays, perDay, growthEventDays, growthRounds),
		Goal: "full ÷ empty ≤ 1.15 for drain, hand-off and submission; rows retired a second ≥ jobs finished a second; sizes level out"}
	empty, err := b.rig(ctx, growthKeeps)
	if err != nil {
		return l, err
	}
	defer empty.close()
	full, err := b.rig(ctx, growthKeeps)
	if err != nil {
		return l, err
	}
	defer full.close()
	h := newHistory(full, perDay, b.printf)
	began := time.Now()
	if err := h.fill(ctx); err != nil {
		return l, fmt.Errorf("fill: %w", err)
	}
	l.set("fill s", time.Since(began).Seconds())
	if err := h.sizes(ctx, &l, "filled"); err != nil {
		return l, err
	}
	if err := b.growthCompared(ctx, &l, empty, full); err != nil {
		return l, fmt.Errorf("compare: %w", err)
	}
	if err := b.growthRetired(ctx, &l, h); err != nil {
		return l, fmt.Errorf("retire: %w", err)
	}
	return l, nil
}

// growthTurns is the number of measurements of each database.
const growthTurns = 11

// growthCompared measures both databases alternately. It reports the medians for both databases and the median of the ratios.
func (b *lab) growthCompared(ctx context.Context, l *line, empty, full *rig) error {
	sides := []*growthSide{}
	for _, g := range []*rig{empty, full} {
		s, err := newGrowthSide(ctx, g)
		if err != nil {
			return err
		}
		defer s.close()
		sides = append(sides, s)
	}
	for round := range growthTurns {
		b.printf("growth: turn %d of %d", round+1, growthTurns)
		for i := range sides {
			if err := sides[(round+i)%2].round(ctx, b.size(20_000), b.size(40)); err != nil {
				return err
			}
		}
	}
	for _, name := range sides[0].order {
		e, f := sides[0].seen[name], sides[1].seen[name]
		ratios := make([]float64, len(e))
		for i := range e {
			ratios[i] = f[i] / e[i]
		}
		l.set(name+", empty", median(e))
		l.set(name+", full", median(f))
		l.set(name+", full ÷ empty", median(ratios))
	}
	return nil
}

// history is a database that contains many days. Day 0 is the oldest day of events; finished jobs begin growthEventDays - growthDays later.
// The rounds use today and the following days, so new rows always have the latest times and go to the end of every index, as in production.
type history struct {
	g      *rig
	perDay int
	first  time.Time // start of day 0
	next   int       // the next day to fill
	say    func(format string, args ...any)
}

func newHistory(g *rig, perDay int, say func(string, ...any)) *history {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	return &history{g: g, perDay: perDay, first: today.AddDate(0, 0, -growthEventDays), say: say}
}

func (h *history) day(n int) time.Time { return h.first.AddDate(0, 0, n) }

// growthDaySQL creates the partitions of a day.
const growthDaySQL = `
select trapeze.create_day(parent, '%s') from unnest(array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events']) parent`

// growthJobsSQL fills part of a day in one transaction. It inserts jobs, their ends, and the pipelines of chains. The third step of every
// hundredth chain failed, and one job in a thousand was cancelled.
const growthJobsSQL = `
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

// growthEventsSQL inserts the three events of each job. Twenty jobs share a row, as in the batches of a busy pod.
const growthEventsSQL = `
insert into trapeze.job_events (jobs, event_nos, fences, boot, from_state, to_state, event, at)
select array_agg($1::bigint + n order by n), array_agg(e.no), array_agg(1::bigint), '00000000-0000-4000-8000-000000000001',
	e.was, e.now, e.event, min($2::timestamptz + n * ($3::float8 * interval '1 second'))
from generate_series($4::int, $5::int - 1) n
cross join (values (1, '', 'pending', 'job.enqueued'), (2, 'pending', 'running', 'job.claimed'), (3, 'running', 'succeeded', 'job.succeeded')) e(no, was, now, event)
group by n / 20, e.no, e.was, e.now, e.event`

// fill fills all days except those that the rounds use.
func (h *history) fill(ctx context.Context) error {
	for h.next < growthEventDays {
		if err := h.fillDay(ctx); err != nil {
			return err
		}
	}
	return h.g.tidy(ctx)
}

// fillDay fills the next day, in transactions of 10,000 jobs.
func (h *history) fillDay(ctx context.Context) error {
	const atOnce = 10_000
	h.say("growth: day %d", h.next+1)
	day := h.day(h.next)
	conn, err := pgx.Connect(ctx, h.g.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `set synchronous_commit = off`); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(growthDaySQL, day.Format(time.DateOnly))); err != nil {
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
			if h.next >= growthEventDays-growthDays {
				if _, err := tx.Exec(ctx, growthJobsSQL, args...); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, growthEventsSQL, args...)
			return err
		})
		if err != nil {
			return err
		}
	}
	h.next++
	return nil
}

// growthSizesSQL lists tables and indexes by size. The size of a partitioned table includes its partitions.
const growthSizesSQL = `
select name, sum(bytes)::float8 / 1e6 from (
	select regexp_replace(c.relname, '_\d{8}', '') as name, pg_relation_size(c.oid) as bytes
	from pg_class c where c.relnamespace = 'trapeze'::regnamespace and c.relkind in ('r', 'i')
) t group by name having sum(bytes) > $1 order by 2 desc`

// sizes reports the sizes of large tables and indexes and of the whole database, in MB.
func (h *history) sizes(ctx context.Context, l *line, when string) error {
	var whole float64
	if err := h.g.pool.QueryRow(ctx, `select pg_database_size(current_database())::float8 / 1e6`).Scan(&whole); err != nil {
		return err
	}
	l.set(when+", database MB", whole)
	found, err := h.g.pool.Query(ctx, growthSizesSQL, int64(whole*1e6/200))
	if err != nil {
		return err
	}
	var name string
	var mb float64
	_, err = pgx.ForEachRow(found, []any{&name, &mb}, func() error {
		l.set(when+", "+name+" MB", mb)
		return nil
	})
	return err
}
