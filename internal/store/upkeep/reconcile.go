package upkeep

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// waitingSinceSQL lists jobs that are waiting for their branches. Plan: parked_for_branches from an id on, stops at the limit; primary
// keys.
const waitingSinceSQL = `
select p.id, j.pipeline_id from trapeze.parked p join trapeze.jobs j on j.id = p.id
join trapeze.fan_outs f on f.id = p.id
where p.why = 'children' and p.id > $1 and not f.ended order by p.id limit $2`

// lockFanOutSQL locks a fan-out, so that branches that finish concurrently are counted only after the transaction. The next statement sees
// the branches counted before. Plan: fan_outs_pkey.
const lockFanOutSQL = `select open, failed from trapeze.fan_outs where id = $1 and not ended for update`

// recountSQL recounts the branches of fan-out $2 in pipeline $1, and corrects the fan-out's counts. A branch without a row was deleted
// manually and counts as failed. Plan: jobs_of_pipeline for (pipeline, group); parts_pkey.
const recountSQL = `
with tails as materialized (
	select v.state, b.impaired or v.reason = 'children_failed' as impaired
	from (` + store.BranchTails + `) b join trapeze.job v on v.id = b.id
), counted as (
	select count(*) filter (where state not in ('succeeded', 'failed', 'cancelled')) as open,
		count(*) filter (where state = 'succeeded') as succeeded, count(*) filter (where state = 'succeeded' and impaired) as impaired
	from tails
), parts as (
	select count(*) as done, count(error) as failed from trapeze.parts where id = $2
), truth as (
	select f.id, (case when f.deferred then greatest(f.branches - p.done, 0) else c.open end)::int as open,
		(case when f.deferred then p.failed else f.branches - c.open - c.succeeded end)::int as failed, c.impaired::int as impaired
	from (select f.id, f.branches, exists (select from trapeze.deferrals d where d.id = f.id) as deferred
		from trapeze.fan_outs f where f.id = $2) f, counted c, parts p
)
update trapeze.fan_outs f set open = t.open, failed = t.failed, impaired = t.impaired
from truth t where f.id = t.id and (f.open, f.failed, f.impaired) is distinct from (t.open, t.failed, t.impaired)
returning f.open, f.failed`

// Drift is a fan-out whose counts were wrong.
type Drift struct {
	ID                                     int64
	OpenBefore, FailedBefore, Open, Failed int
}

// Reconcile recounts the branches of at most limit waiting jobs, starting after the given id, and corrects wrong counts. It returns the
// corrections and the last id read, or 0 if there are no more jobs. No corrections are needed unless rows were changed manually.
func Reconcile(ctx context.Context, s *store.Store, after int64, limit int) (last int64, drifts []Drift, err error) {
	type waiting struct{ ID, Pipeline int64 }
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[waiting], waitingSinceSQL, after, limit)
	if err != nil {
		return 0, nil, fmt.Errorf("list waiting jobs: %w", err)
	}
	type count struct{ Open, Failed int }
	var errs []error // an error for one job does not block the others
	for _, w := range list {
		err := s.Tx(ctx, func(tx pgx.Tx) error {
			before, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[count], s.In(lockFanOutSQL), []any{w.ID})
			if err != nil || len(before) == 0 {
				return err
			}
			now, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[count], s.In(recountSQL), []any{w.Pipeline, w.ID})
			if err == nil && len(now) > 0 {
				drifts = append(drifts, Drift{w.ID, before[0].Open, before[0].Failed, now[0].Open, now[0].Failed})
			}
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("recount the children of job %d: %w", w.ID, err))
			if store.Transient(err) || ctx.Err() != nil {
				return 0, drifts, errors.Join(errs...)
			}
		}
	}
	if len(list) < limit {
		return 0, drifts, errors.Join(errs...)
	}
	return list[len(list)-1].ID, drifts, errors.Join(errs...)
}

const (
	// wrongGrantsSQL lists lanes with a wrong sum of granted slots, or with slots granted to pods that are gone. A pod is gone if it has
	// been closed for ten minutes or has no row. Every statement that changes a grant also changes the sum, so one snapshot is sufficient.
	// Plan: lanes, slot_grants and pods are small.
	wrongGrantsSQL = `
select l.name from trapeze.lanes l
where l.granted <> coalesce((select sum(g.slots) from trapeze.slot_grants g where g.lane = l.name), 0)
	or exists (select from trapeze.slot_grants g where g.lane = l.name and ` + voidGrant + `)
order by l.name`
	// mendGrantsSQL revokes void slots and corrects the locked lanes' sums.
	mendGrantsSQL = `
with gone as (
	delete from trapeze.slot_grants g where g.lane = any($1::text[]) and ` + voidGrant + ` returning g.lane, g.slots
), truth as (
	select l.name, (coalesce((select sum(g.slots) from trapeze.slot_grants g where g.lane = l.name), 0)
		- coalesce((select sum(g.slots) from gone g where g.lane = l.name), 0))::int as granted
	from trapeze.lanes l where l.name = any($1::text[])
)
update trapeze.lanes l set granted = t.granted from truth t where l.name = t.name and l.granted <> t.granted`
	lockLanesSQL = `select name from trapeze.lanes where name = any($1::text[]) order by name for update`
)

// voidGrant is the SQL condition that is true if the pod that holds the grant g no longer exists.
const voidGrant = `not exists (select from trapeze.pods p where p.id = g.pod
	and (p.closed_at is null or p.closed_at > now() - interval '10 minutes'))`

// ReconcileGrants revokes the slots of pods that are gone, and corrects the sum of each lane's granted slots. It returns the corrected
// lanes.
func ReconcileGrants(ctx context.Context, s *store.Store) ([]string, error) {
	lanes, err := store.Rows(ctx, s, pgx.RowTo[string], wrongGrantsSQL)
	if err == nil && len(lanes) > 0 {
		err = s.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, s.In(lockLanesSQL), lanes); err != nil {
				return err
			}
			_, err := store.QueryPinned(ctx, tx, pgx.RowTo[int], s.In(mendGrantsSQL), []any{lanes})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reconcile granted slots: %w", err)
	}
	return lanes, nil
}

const (
	// strayRunsSQL locks at most $1 guards whose jobs are neither pending nor running, nor ordered and parked. Each such guard would block all jobs of its subject
	// indefinitely. endStraySQL, which sees everything committed before the locks were taken, frees the guards. Every statement changes the
	// job and its guard together, so such guards exist only after rows were changed manually. Plan: one pass over
	// subjects_one_guard; live_pkey.
	strayRunsSQL = `
select c.kind, c.subject, c.job_id from trapeze.subjects c
where c.state = 'held' and ` + unheld + `
order by c.kind, c.subject limit $1 for update of c skip locked`
	endStraySQL = `
update trapeze.subjects c set state = 'free' where c.kind = $1 and c.subject = $2 and c.job_id = $3 and c.state = 'held'
	and ` + unheld
)

// unheld is the condition that the job of guard c holds no guard. The lookups have limits, so that they stay lookups. Plan: live_pkey; for a guard
// without a row there, parked_pkey and jobs_pkey.
const unheld = `(select true from trapeze.live l where l.id = c.job_id and l.kind = c.kind and l.subject = c.subject limit 1) is null
	and (select true from trapeze.parked p join trapeze.jobs j on j.id = p.id where p.id = c.job_id and p.kind = c.kind and p.subject = c.subject
		and p.why in ('retry', 'snooze', 'key') and j.ordered limit 1) is null`

// UnheldGuard is a guard whose job was neither pending nor running, nor ordered and parked.
type UnheldGuard struct {
	Kind, Subject string
	JobID         int64
}

// ReconcileGuards frees at most limit guards whose jobs are neither pending nor running, and returns them. Such guards exist only if rows were
// changed manually.
func ReconcileGuards(ctx context.Context, s *store.Store, limit int) (ended []UnheldGuard, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		ended = nil
		list, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[UnheldGuard], s.In(strayRunsSQL), []any{limit})
		if err != nil {
			return err
		}
		for _, run := range list {
			tag, err := tx.Exec(ctx, s.In(endStraySQL), run.Kind, run.Subject, run.JobID)
			if err != nil {
				return err
			}
			if tag.RowsAffected() > 0 {
				ended = append(ended, run)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reconcile the runs of subjects: %w", err)
	}
	return ended, nil
}
