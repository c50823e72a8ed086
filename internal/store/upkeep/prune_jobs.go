package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/store"
)

// Pace is called before each batch of a maintenance task. It may wait. If it returns an error, the task stops, but earlier batches remain
// committed.
type Pace func(ctx context.Context) error

// forgetPageSQL lists one page of the jobs that ended in one state on one day. For each job, it reports whether the job is to be deleted,
// depending on whether its kind is in a list. A concurrent run on another pod is harmless. A UTC day has 24 hours; an interval of '1 day'
// in the session's time zone can have 23 or 25. Plan: the day's index on id, keyset; jobs_pkey.
const forgetPageSQL = `
select d.id, coalesce(j.kind = any($5::text[]), false) <> $6::boolean
from trapeze.done d left join trapeze.jobs j on j.id = d.id
where d.state = $1 and d.finished_at >= $2::timestamptz and d.finished_at < $2::timestamptz + interval '24 hours' and d.id > $3
order by d.id limit $4`

// lockJobsSQL locks finished jobs so that they cannot be retried afterwards. The statement that follows sees retries committed before the
// locks were taken. lockFreeJobsSQL does the same but skips locked rows. Plan: jobs_pkey.
const (
	lockJobsSQL     = `select j.id from trapeze.jobs j where j.id = any($1::bigint[]) order by j.id for update`
	lockFreeJobsSQL = `select j.id from trapeze.jobs j where j.id = any($1::bigint[]) order by j.id for update skip locked`
)

// stillEndedSQL lists the locked jobs that have not been retried since they were listed. A job that was retried and has ended again ended
// on a different day. Plan: the day's index on id.
const stillEndedSQL = `
select distinct d.id from trapeze.done d
where d.id = any($1::bigint[]) and d.state = $2 and d.finished_at >= $3::timestamptz and d.finished_at < $3::timestamptz + interval '24 hours'`

// forgetJobsSQL deletes the immutable data of finished jobs. A job that was retried after [awaitedSQL] ran may now be waiting for one of
// these jobs. Such an awaited job is kept and counted. Rows of done are deleted together with the day, or by forgetEndsSQL. Tokens are
// deleted before fan-outs, because completing a part locks them in that order. Plan: primary key lookups.
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
	delete from trapeze.subjects c using gone b join trapeze.jobs j on j.id = b.id
	where j.subject <> '' and c.kind = j.kind and c.subject = j.subject and c.job_id = b.id and c.state = 'free'
)
select count(*) from ended where awaited`

// forgetEndsSQL deletes the rows of done that belong to deleted jobs, on a day that is kept because of other jobs. keptEndsSQL counts the
// jobs of a batch that still exist because their rows were locked or another job waits for them. Plan: the day's index on id; primary keys.
const (
	forgetEndsSQL = `
delete from trapeze.done d
where d.id = any($1::bigint[]) and d.state = $2 and d.finished_at >= $3::timestamptz and d.finished_at < $3::timestamptz + interval '24 hours'
	and (select true from trapeze.jobs j where j.id = d.id limit 1) is null`
	keptEndsSQL = `
select count(distinct d.id) from trapeze.done d join trapeze.jobs j on j.id = d.id
where d.id = any($1::bigint[]) and d.state = $2 and d.finished_at >= $3::timestamptz and d.finished_at < $3::timestamptz + interval '24 hours'
	and (select true from trapeze.live l where l.id = d.id limit 1) is null
	and (select true from trapeze.parked p where p.id = d.id limit 1) is null`
)

// awaitedSQL lists the jobs that ended in one state on one day and whose results an unfinished step may still read. Such a step reads the
// result of its parent, or the results of the branches of the fan-out that it joins or waits for. Each part of the statement is written as
// a probe, because the planner would execute joins by scanning all jobs and the whole day. Plan: one pass over live and parked, primary
// keys, jobs_of_pipeline, the day's index on id; once for each day to be deleted.
const awaitedSQL = `
with parents as materialized (
	select distinct (select j.parent_id from trapeze.jobs j where j.id = u.id limit 1) as id
	from (select id from trapeze.live union all select id from trapeze.parked) u
), fans as materialized (
	select id, (select j.pipeline_id from trapeze.jobs j where j.id = w.id limit 1) as pipeline_id
	from (select id from parents union select id from trapeze.parked where why = 'children') w
	where (select true from trapeze.fan_outs f where f.id = w.id limit 1)
), read as materialized (
	select id from parents
	union
	select b.id from fans w cross join lateral (
		select b.id from trapeze.jobs b where b.pipeline_id = w.pipeline_id and coalesce(b.group_id, 0) = w.id and b.step > 0 offset 0
	) b
)
select r.id from read r where (select true from trapeze.done d
	where d.id = r.id and d.state = $1 and d.finished_at >= $2::timestamptz and d.finished_at < $2::timestamptz + interval '24 hours' limit 1)`

// pruneBatch is the number of jobs that one transaction deletes.
const pruneBatch = 2000

// dayPruning prunes the jobs that ended in one state on one day.
type dayPruning struct {
	s       *store.Store
	state   string
	day     time.Time
	rule    rule
	awaited map[int64]bool
	thins   bool // the day is kept, and its rows are deleted individually
	pace    Pace

	gone int // number of deleted jobs
	left int // number of jobs that could not be deleted yet
	errs []error
}

// page prunes the page that follows an id. It returns the last id read, or 0 after the last page.
func (f *dayPruning) page(ctx context.Context, after int64) (int64, error) {
	type one struct {
		ID  int64
		Due bool
	}
	list, err := store.Rows(ctx, f.s, pgx.RowToStructByPos[one], forgetPageSQL, f.state, f.day, after, pruneBatch, f.rule.kinds, f.rule.rest)
	if err != nil {
		return 0, err
	}
	var due []int64
	for _, j := range list {
		switch {
		case j.Due && f.awaited[j.ID]:
			f.left++
		case j.Due:
			due = append(due, j.ID)
		}
	}
	if err := f.batch(ctx, due); err != nil || len(list) < pruneBatch {
		return 0, err
	}
	return list[len(list)-1].ID, nil
}

// batch prunes jobs in one transaction. If some of their rows are locked, it prunes only the others. If PostgreSQL rejects the deletion of
// a job, batch isolates that job by bisection and skips it.
func (f *dayPruning) batch(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	gone, left, err := deleteEnded(ctx, f.s, f, ids, lockJobsSQL)
	if LockTimedOut(err) {
		gone, left, err = deleteEnded(ctx, f.s, f, ids, lockFreeJobsSQL)
	}
	if err == nil {
		f.gone, f.left = f.gone+gone, f.left+left
		return nil
	}
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused || store.Transient(err) || ctx.Err() != nil {
		return err
	}
	if len(ids) == 1 {
		f.left++
		f.errs = append(f.errs, fmt.Errorf("prune job %d: %w", ids[0], err))
		return nil
	}
	if err := f.batch(ctx, ids[:len(ids)/2]); err != nil {
		return err
	}
	return f.batch(ctx, ids[len(ids)/2:])
}

// LockTimedOut reports whether a lock timeout expired.
func LockTimedOut(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

// deleteEnded deletes jobs that ended on the day and skips jobs that were retried. It returns the number of deleted jobs. It also returns
// the number of jobs that were kept because another job is waiting for them again or because their rows are locked.
func deleteEnded(ctx context.Context, s *store.Store, f *dayPruning, ids []int64, lock string) (gone, left int, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
		}
		locked, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(lock), []any{ids})
		if err == nil {
			locked, err = store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(stillEndedSQL), []any{locked, f.state, f.day})
		}
		if err != nil {
			return err
		}
		awaited, err := DeleteJobs(ctx, s, tx, locked)
		if err == nil && f.thins {
			_, err = tx.Exec(ctx, s.In(forgetEndsSQL), ids, f.state, f.day)
		}
		if err != nil {
			return err
		}
		gone = len(locked) - awaited
		kept, err := store.QueryPinned(ctx, tx, pgx.RowTo[int], s.In(keptEndsSQL), []any{ids, f.state, f.day})
		if err == nil {
			left = kept[0]
		}
		return err
	})
	return gone, left, err
}

// LockEnded locks jobs so that none of them can be retried before the transaction ends.
func LockEnded(ctx context.Context, s *store.Store, tx pgx.Tx, ids []int64) ([]int64, error) {
	return store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(lockJobsSQL), []any{ids})
}

// DeleteJobs deletes locked jobs except for their rows in done. It keeps children for which a job is still waiting, and returns their
// number. The caller must exclude all other awaited jobs (see awaitedSQL).
func DeleteJobs(ctx context.Context, s *store.Store, tx pgx.Tx, ids []int64) (awaited int, err error) {
	counted, err := store.QueryPinned(ctx, tx, pgx.RowTo[int], s.In(forgetJobsSQL), []any{ids})
	if err != nil {
		return 0, err
	}
	return counted[0], nil
}
