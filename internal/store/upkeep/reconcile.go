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
