package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// prunePodsSQL deletes a batch of closed pods' rows. It also deletes, without a limit, claim requests older than ten minutes, and cancel
// requests of that age whose claims are gone. pruneSubmissionsSQL deletes a batch of expired idempotency keys.
const (
	prunePodsSQL = `
with old as (
	delete from trapeze.pods where id in (
		select id from trapeze.pods where closed_at < now() - $1::bigint * interval '1 millisecond' and swept_at is not null
		order by closed_at limit $2)
	returning id
), told as (
	delete from trapeze.cancel_requests c
	where c.created_at < now() - interval '10 minutes' and not exists (select from trapeze.live l where l.id = c.job_id and l.fence = c.fence)
), asked as (
	delete from trapeze.claim_requests where created_at < now() - interval '10 minutes'
)
select count(*) from old`
	pruneSubmissionsSQL = `
with old as (
	delete from trapeze.submissions where key in (
		select key from trapeze.submissions where created_at < now() - $1::bigint * interval '1 millisecond' order by created_at limit $2)
	returning key
)
select count(*) from old`
)

// prunePipelinesSQL deletes the old pipelines on one page that have no jobs left. Plan: pipelines_pkey, keyset; jobs_pkey and
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

// PrunePipelines deletes pipelines that have no jobs and are older than keep, page by page, and returns how many it deleted.
func PrunePipelines(ctx context.Context, s *store.Store, keep time.Duration, pace Pace) (total int, err error) {
	const limit = 5000
	type page struct{ Last, Seen, Gone int64 }
	for after := int64(0); ; {
		if err := pace(ctx); err != nil {
			return total, err
		}
		found, err := store.Rows(ctx, s, pgx.RowToStructByPos[page], prunePipelinesSQL, keep.Milliseconds(), after, limit)
		if err != nil {
			return total, fmt.Errorf("prune pipelines: %w", err)
		}
		total += int(found[0].Gone)
		if after = found[0].Last; found[0].Seen < limit {
			return total, nil
		}
	}
}

// PrunePods deletes at most limit rows of pods whose jobs have been recovered. The pods must have been closed for longer than keep. It also
// deletes old requests that are no longer needed. It returns the number of deleted pod rows.
func PrunePods(ctx context.Context, s *store.Store, keep time.Duration, limit int) (int, error) {
	return prune(ctx, s, prunePodsSQL, keep, limit)
}

// PruneSubmissions deletes at most limit idempotency keys older than keep, and returns how many it deleted.
func PruneSubmissions(ctx context.Context, s *store.Store, keep time.Duration, limit int) (int, error) {
	return prune(ctx, s, pruneSubmissionsSQL, keep, limit)
}

func prune(ctx context.Context, s *store.Store, sql string, keep time.Duration, limit int) (int, error) {
	n, err := store.Rows(ctx, s, pgx.RowTo[int], sql, keep.Milliseconds(), limit)
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	return n[0], nil
}

const (
	// looseKeysSQL locks the unique keys on one page whose jobs have ended or no longer exist. Such a key remains, for example, if an open
	// transaction held its lock when the job ended. freeLooseSQL, which sees everything committed before the locks were taken, frees the
	// keys. A key that a submission is taking over is locked and therefore skipped. Plan: unique_keys_of_job, keyset; primary keys.
	looseKeysSQL = `
with page as materialized (
	select k.kind, k.key, k.job_id from trapeze.unique_keys k where k.job_id > $1 order by k.job_id limit $2
), loose as materialized (
	select k.job_id from page g join trapeze.unique_keys k on k.kind = g.kind and k.key = g.key
	where (select true from trapeze.live l where l.id = g.job_id limit 1) is null
		and (select true from trapeze.parked p where p.id = g.job_id limit 1) is null
	for update of k skip locked
)
select coalesce((select max(job_id) from page), 0), (select count(*) from page), coalesce((select array_agg(job_id) from loose), '{}')`
	freeLooseSQL = `
delete from trapeze.unique_keys k where k.job_id = any($1::bigint[])
	and (select true from trapeze.live l where l.id = k.job_id limit 1) is null
	and (select true from trapeze.parked p where p.id = k.job_id limit 1) is null`
)

// PruneKeys frees the unique keys of jobs that have ended or no longer exist, page by page, and returns how many it freed.
func PruneKeys(ctx context.Context, s *store.Store, pace Pace) (total int, err error) {
	const limit = 5000
	type page struct {
		Last, Seen int64
		Loose      []int64
	}
	for after := int64(0); ; {
		if err := pace(ctx); err != nil {
			return total, err
		}
		seen, freed := int64(0), 0
		err := s.Tx(ctx, func(tx pgx.Tx) error {
			found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[page], s.In(looseKeysSQL), []any{after, limit})
			if err != nil {
				return err
			}
			after, seen, freed = found[0].Last, found[0].Seen, 0
			if len(found[0].Loose) == 0 {
				return nil
			}
			tag, err := tx.Exec(ctx, s.In(freeLooseSQL), found[0].Loose)
			freed = int(tag.RowsAffected())
			return err
		})
		if total += freed; err != nil {
			return total, fmt.Errorf("free unique keys: %w", err)
		}
		if seen < limit {
			return total, nil
		}
	}
}

// keptOccurrences is the number of latest occurrences kept for each schedule, regardless of age. In addition, the same number of the latest
// occurrences with a job is kept.
const keptOccurrences = 20

// pruneOccurrencesSQL deletes old occurrences of all schedules, including deleted ones. It keeps the latest occurrences, and those that the
// schedule has not reached yet. It also keeps the latest occurrences that have a job, because they show whether one of the schedule's jobs
// is active. Plan: one probe of schedule_occurrences_pkey per schedule name; for each schedule, the rows before the oldest one kept, up to the
// limit.
const pruneOccurrencesSQL = `
with recursive names(schedule) as (
	(select f.schedule from trapeze.schedule_occurrences f order by f.schedule, f.fire_at limit 1)
	union all
	select (select f.schedule from trapeze.schedule_occurrences f where f.schedule > n.schedule order by f.schedule, f.fire_at limit 1)
	from names n where n.schedule is not null
), old as (
	select o.schedule, o.fire_at from names n
	cross join lateral (
		select least(
			coalesce((select f.fire_at from trapeze.schedule_occurrences f where f.schedule = n.schedule
				order by f.fire_at desc offset $2 - 1 limit 1), '-infinity'),
			coalesce((select s.next_at from trapeze.schedules s where s.name = n.schedule), 'infinity'),
			now() - $1::bigint * interval '1 millisecond') as before,
			coalesce((select f.fire_at from trapeze.schedule_occurrences f where f.schedule = n.schedule and f.job_id is not null
				order by f.fire_at desc offset $2 - 1 limit 1), '-infinity') as working
	) k
	join trapeze.schedule_occurrences o on o.schedule = n.schedule and o.fire_at < k.before
		and (o.job_id is null or o.fire_at < k.working)
		and o.decided_at < now() - $1::bigint * interval '1 millisecond'
	limit $3
)
delete from trapeze.schedule_occurrences f using old o where f.schedule = o.schedule and f.fire_at = o.fire_at returning 1`

// PruneOccurrences deletes occurrences older than keep, page by page, and returns how many it deleted. It always keeps the latest twenty of each
// schedule. If keep is negative, it deletes nothing. Several pods can run it concurrently.
func PruneOccurrences(ctx context.Context, s *store.Store, keep time.Duration, pace Pace) (total int, err error) {
	const limit = 5000
	for keep >= 0 {
		if err := pace(ctx); err != nil {
			return total, err
		}
		gone, err := store.Rows(ctx, s, pgx.RowTo[int], pruneOccurrencesSQL, keep.Milliseconds(), keptOccurrences, limit)
		total += len(gone)
		if err != nil {
			return total, fmt.Errorf("prune occurrences: %w", err)
		}
		if len(gone) < limit {
			break
		}
	}
	return total, nil
}

const (
	// beginTaskSQL assigns a maintenance task to a pod unless a pod began the task less than $2 ms ago, by the database's clock. If several
	// pods ask concurrently, only one of them gets the task. If $2 is 0, every pod gets it. A start time in the future is ignored; it can
	// occur after the clock has been set back. Plan: primary key, one row.
	beginTaskSQL = `
insert into trapeze.maintenance as m (task, begun_at, pod) values ($1, clock_timestamp(), $3)
on conflict (task) do update set begun_at = excluded.begun_at, pod = excluded.pod
where $2::bigint = 0 or m.begun_at not between clock_timestamp() - $2 * interval '1 millisecond' and clock_timestamp()
returning 1`
	// endTaskSQL records a task's result.
	endTaskSQL = `
update trapeze.maintenance set done_at = clock_timestamp(), pod = $2, count = $3, seconds = $4, error = $5 where task = $1 returning 1`
	taskRunsSQL = `
select task, begun_at, done_at, pod, count, seconds, error, extract(epoch from clock_timestamp() - coalesce(done_at, begun_at))::float8
from trapeze.maintenance order by task`
)

// TaskRun describes the last run of a maintenance task: its times, its pod and its result.
type TaskRun struct {
	Task    string
	BegunAt time.Time
	DoneAt  *time.Time // nil if the task has never finished
	Pod     string
	Count   int64
	Seconds float64
	Error   string
	Ago     float64 // seconds since the task finished, or since it began if it has never finished
}

// BeginTask assigns a task to a pod, unless a pod began the task less than within ago, and reports whether it did so. If within is 0, it
// always assigns the task.
func BeginTask(ctx context.Context, s *store.Store, task, pod string, within time.Duration) (bool, error) {
	given, err := store.Rows(ctx, s, pgx.RowTo[int], beginTaskSQL, task, within.Milliseconds(), pod)
	if err != nil {
		return false, fmt.Errorf("start maintenance task %s: %w", task, err)
	}
	return len(given) > 0, nil
}

// EndTask records that a task has finished, with or without an error.
func EndTask(ctx context.Context, s *store.Store, t TaskRun) error {
	if _, err := store.Rows(ctx, s, pgx.RowTo[int], endTaskSQL, t.Task, t.Pod, t.Count, t.Seconds, t.Error); err != nil {
		return fmt.Errorf("record the end of maintenance task %s: %w", t.Task, err)
	}
	return nil
}

// TaskRuns returns the last run of each task that has ever begun.
func TaskRuns(ctx context.Context, s *store.Store) ([]TaskRun, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[TaskRun], taskRunsSQL)
	if err != nil {
		return nil, fmt.Errorf("read the runs of maintenance tasks: %w", err)
	}
	return list, nil
}
