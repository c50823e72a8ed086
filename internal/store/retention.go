package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ensurePartitionsSQL makes the days ahead that are missing.
const ensurePartitionsSQL = `select trapeze.ensure_partitions($1::int)`

// EnsurePartitions makes the partitions of today and of the days ahead, and returns how many were missing.
func (s *Store) EnsurePartitions(ctx context.Context, daysAhead int) (int, error) {
	made, err := rows(ctx, s, pgx.RowTo[int], ensurePartitionsSQL, daysAhead)
	if err != nil {
		return 0, fmt.Errorf("ensure partitions: %w", err)
	}
	return made[0], nil
}

// oldDaysSQL lists the days of a partitioned table that ended before a moment, oldest first.
const oldDaysSQL = `
select to_date(right(c.relname, 8), 'YYYYMMDD')
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = to_regclass($1)
	and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= ($2::timestamptz at time zone 'UTC')::date
order by 1`

// forgetBatchSQL lists one batch of the jobs that ended in one state on one day. lockJobsSQL locks them, so that none of them is
// tried again from here on; what was before is seen by the statement that follows. Plan: the day's index on id, keyset; jobs_pkey.
const (
	forgetBatchSQL = `
select d.id from trapeze.done d
where d.state = $1 and d.finished_at >= $2::timestamptz and d.finished_at < $2::timestamptz + interval '1 day' and d.id > $3
order by d.id limit $4`
	lockJobsSQL = `select j.id from trapeze.jobs j where j.id = any($1::bigint[]) order by j.id for update`
)

// forgetJobsSQL deletes the immutable part of jobs that have ended, and counts those that it leaves because a job waits for them: one
// that was tried again since [awaitedSQL]. Their rows of done go with the day. Tokens go before
// fan-outs, in the order in which a part is completed. Plan: primary keys.
const forgetJobsSQL = `
with ended as materialized (
	select b.id, coalesce((select true from trapeze.jobs j join trapeze.parked p on p.id = j.group_id where j.id = b.id limit 1), false)
		as awaited
	from unnest($1::bigint[]) as b(id) where not exists (select from trapeze.live l where l.id = b.id)
		and not exists (select from trapeze.parked p where p.id = b.id)
), gone as materialized (
	select id from ended where not awaited
), forgotten as (
	delete from trapeze.jobs j using gone b where j.id = b.id
), progress as (
	delete from trapeze.job_progress g using gone b where g.id = b.id
), deferrals as (
	delete from trapeze.deferrals f using gone b where f.id = b.id
), fan_outs as (
	delete from trapeze.fan_outs f using gone b where f.id = b.id
), parts as (
	delete from trapeze.parts f using gone b where f.id = b.id
), keys as (
	delete from trapeze.unique_keys k using gone b where k.job_id = b.id
), runs as (
	delete from trapeze.current_runs c using gone b join trapeze.jobs j on j.id = b.id
	where j.subject <> '' and c.kind = j.kind and c.subject = j.subject and c.job_id = b.id and c.state = 'ended'
)
select count(*) from ended where awaited`

// awaitedSQL asks whether a step that has not ended yet may still read what ended in one state on one day: the result of its
// parent, or those of the branches of the fan-out that it joins, or that waits. Plan: one pass over live and parked, primary keys,
// done_by_id for each that may be read (offset 0: a plan of when the day was small would read it whole), jobs_of_pipeline; once for
// each day that is to go.
const awaitedSQL = `
with parents as materialized (
	select distinct j.parent_id as id
	from (select id from trapeze.live union all select id from trapeze.parked) u join trapeze.jobs j on j.id = u.id
	where j.parent_id is not null
), fans as materialized (
	select id from parents union select id from trapeze.parked where why = 'children'
), read as (
	select id from parents
	union all
	select b.id from fans w join trapeze.fan_outs f on f.id = w.id join trapeze.jobs j on j.id = f.id
	join trapeze.jobs b on b.pipeline_id = j.pipeline_id and coalesce(b.group_id, 0) = f.id and b.step > 0
)
select exists (
	select from read r cross join lateral (
		select from trapeze.done d
		where d.id = r.id and d.state = $1 and d.finished_at >= $2::timestamptz and d.finished_at < $2::timestamptz + interval '1 day'
		offset 0
	) ended)`

const dropPartitionSQL = `select trapeze.drop_partition($1, $2)`

// Forget removes what ended in the given state before a moment, by whole days, in batches; it returns the number of jobs. It
// stops at a day on which the parent of a job ended that has not ended itself, for that may read its result.
// It may be interrupted at any point and run by two pods at once.
func (s *Store) Forget(ctx context.Context, state string, before time.Time) (int, error) {
	table := "done_" + state
	days, err := rows(ctx, s, pgx.RowTo[time.Time], oldDaysSQL, s.schema+"."+table, before)
	if err != nil {
		return 0, fmt.Errorf("list old days of %s: %w", table, err)
	}
	total := 0
	for _, day := range days {
		awaited, err := rows(ctx, s, pgx.RowTo[bool], awaitedSQL, state, day)
		if err != nil {
			return total, fmt.Errorf("forget %s jobs: %w", state, err)
		}
		if awaited[0] {
			return total, nil // days go in order, and this one is still needed
		}
		for after := int64(0); ; {
			batch, err := rows(ctx, s, pgx.RowTo[int64], forgetBatchSQL, state, day, after, 5000)
			left := int64(0)
			if err == nil {
				left, err = s.forget(ctx, batch)
			}
			if err != nil {
				return total, fmt.Errorf("forget %s jobs: %w", state, err)
			}
			if len(batch) == 0 {
				break
			}
			after = batch[len(batch)-1]
			total += len(batch) - int(left)
			if left > 0 {
				return total, nil
			}
		}
		if err := s.dropDay(ctx, table, day.AddDate(0, 0, 1)); err != nil {
			return total, err
		}
	}
	return total, nil
}

// forget deletes jobs that have ended, except those that live again and those that are waited for again, which it counts.
func (s *Store) forget(ctx context.Context, ids []int64) (left int64, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := pinnedIn(ctx, tx, pgx.RowTo[int64], s.in(lockJobsSQL), []any{ids}); err != nil {
			return err
		}
		found, err := pinnedIn(ctx, tx, pgx.RowTo[int64], s.in(forgetJobsSQL), []any{ids})
		if err == nil {
			left = found[0]
		}
		return err
	})
	return left, err
}

// ForgetEvents drops the days of the history that ended before a moment, and returns how many.
func (s *Store) ForgetEvents(ctx context.Context, before time.Time) (int, error) {
	days, err := rows(ctx, s, pgx.RowTo[time.Time], oldDaysSQL, s.schema+".job_events", before)
	if err != nil {
		return 0, fmt.Errorf("list old days of job_events: %w", err)
	}
	for _, day := range days {
		if err := s.dropDay(ctx, "job_events", day.AddDate(0, 0, 1)); err != nil {
			return 0, err
		}
	}
	return len(days), nil
}

// dropDay waits only a second for its lock: whoever reads the table comes first, and the next round tries again.
func (s *Store) dropDay(ctx context.Context, table string, before time.Time) error {
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local lock_timeout = '1s'`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.in(dropPartitionSQL), table, before)
		return err
	})
	if err != nil {
		return fmt.Errorf("drop a day of %s: %w", table, err)
	}
	return nil
}

// prunePodsSQL removes the rows of closed pods, and what was to be told to them; submissionsSQL the idempotency keys whose
// time is over. Each is one small batch.
const (
	prunePodsSQL = `
with old as (
	delete from trapeze.pods where boot in (
		select boot from trapeze.pods where closed_at < now() - $1::bigint * interval '1 millisecond' and swept_at is not null
		order by closed_at limit 500)
	returning boot
), told as (
	delete from trapeze.cancel_requests c
	where c.created_at < now() - interval '10 minutes' and not exists (select from trapeze.live l where l.id = c.job_id and l.fence = c.fence)
)
select count(*) from old`
	pruneSubmissionsSQL = `
with old as (
	delete from trapeze.submissions where key in (
		select key from trapeze.submissions where created_at < now() - $1::bigint * interval '1 millisecond' order by created_at limit 5000)
	returning key
)
select count(*) from old`
)

// prunePipelinesSQL removes those of one page of pipelines whose jobs are gone. Plan: pipelines_pkey, keyset; jobs_pkey and
// jobs_of_pipeline for each.
const prunePipelinesSQL = `
with page as materialized (
	select p.id, p.created_at from trapeze.pipelines p where p.id > $2 order by p.id limit $3
), old as (
	delete from trapeze.pipelines p using page g
	where p.id = g.id and g.created_at < now() - $1::bigint * interval '1 millisecond'
		and not exists (select from trapeze.jobs j where j.id = p.id)
		and not exists (select from trapeze.jobs j where j.pipeline_id = p.id and j.step > 0)
	returning p.id
)
select coalesce((select max(id) from page), 0), (select count(*) from page), (select count(*) from old)`

// PrunePipelines forgets pipelines of which no job is kept and that are older than keep, page by page, and returns how many.
func (s *Store) PrunePipelines(ctx context.Context, keep time.Duration) (int, error) {
	const limit = 5000
	type page struct{ Last, Seen, Gone int64 }
	total := 0
	for after := int64(0); ; {
		found, err := rows(ctx, s, pgx.RowToStructByPos[page], prunePipelinesSQL, keep.Milliseconds(), after, limit)
		if err != nil {
			return total, fmt.Errorf("prune pipelines: %w", err)
		}
		total += int(found[0].Gone)
		if after = found[0].Last; found[0].Seen < limit {
			return total, nil
		}
	}
}

// PrunePods removes the rows of pods that closed longer ago than keep and whose jobs have been looked for, at most 500, and
// returns how many.
func (s *Store) PrunePods(ctx context.Context, keep time.Duration) (int, error) {
	return s.prune(ctx, prunePodsSQL, keep)
}

// PruneSubmissions forgets idempotency keys older than keep, at most 5,000, and returns how many.
func (s *Store) PruneSubmissions(ctx context.Context, keep time.Duration) (int, error) {
	return s.prune(ctx, pruneSubmissionsSQL, keep)
}

func (s *Store) prune(ctx context.Context, sql string, keep time.Duration) (int, error) {
	n, err := rows(ctx, s, pgx.RowTo[int], sql, keep.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	return n[0], nil
}
