package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// retryStateSQL locks the ends of jobs, so that two retries take turns, and the jobs, so that they are not forgotten meanwhile. It
// tells whether they fanned out to children, of whose fan-out they are branches, and whether they, or children that they join, were erased. Plan:
// done_by_id and primary keys, a row a job; jobs_of_pipeline.
const retryStateSQL = `
select d.id, d.state, ` + hasChildren + `, j.pipeline_id, j.group_id, j.step, j.erased_at is not null or coalesce((select true from trapeze.jobs b
	where b.pipeline_id = j.pipeline_id and coalesce(b.group_id, 0) = j.parent_id and b.step > 0 and b.erased_at is not null limit 1), false)
from trapeze.done d join trapeze.jobs j on j.id = d.id
where d.id = any($1::bigint[]) order by d.id for update of d, j`

// hasChildren says that the job d fanned out to children: one that is deferred is performed again, for only its handler can have
// its parts done. For an exists in the list of columns PostgreSQL 18 would hash whole tables.
const hasChildren = `coalesce((select true from trapeze.fan_outs f where f.id = d.id limit 1)
	and (select true from trapeze.deferrals f where f.id = d.id limit 1) is null, false)`

// endedBranchesSQL locks the last jobs of the branches of the fan-out $2 that were not erased, so that none is forgotten meanwhile, and tells
// which have succeeded and which fanned out to children. Plan: as branchStatesSQL; primary keys.
const endedBranchesSQL = `
select d.id, d.state = 'succeeded', ` + hasChildren + ` from (` + store.BranchTails + `) b
join trapeze.done d on d.id = b.id join trapeze.jobs k on k.id = b.id
where k.erased_at is null order by d.id for update of k`

// openCountSQL locks a fan-out that has ended, and tells how many branches it has and how many have not ended. Plan: fan_outs_pkey.
const openCountSQL = `select branches, open from trapeze.fan_outs where id = $1 and ended for update`

// retryJobsSQL makes jobs that failed or were cancelled pending again, in their next epoch: the fence stays, attempts and crashes
// begin anew. A unique key, which must have been taken, is kept until the claim: held for longer it could swallow what comes after
// that. A lane that is gone is replaced by that of the kind. One that never ran, or that is to run with other arguments ($3), awaits
// approval, if its lane asks for that or it did before: nobody has approved this. Plan: done_by_id; primary keys; job_events_of_job
// for those; inserts.
const retryJobsSQL = `
with gone as (
	delete from trapeze.done where id = any($1::bigint[]) and state in ('failed', 'cancelled') returning *
), back as materialized (
	select g.id, g.started_at, g.fence, g.claim_xid, g.state, g.event_no + 1 as event_no, g.epoch + 1 as epoch, g.priority,
		case when j.unique_key is not null then 'pending' end as unique_while, coalesce(n.name, k.lane, 'default') as lane, j.kind, j.subject,
		(g.fence = 0 or $3::boolean) and j.parent_id is null and (coalesce(n.requires_approval, false)
			or coalesce((select true from trapeze.job_events e where e.job = g.id and e.from_state = 'awaiting_approval' limit 1), false)) as asks
	from gone g join trapeze.jobs j on j.id = g.id
	left join trapeze.lanes n on n.name = g.lane left join trapeze.lane_kinds k on k.kind = j.kind
), due as (
	insert into trapeze.live (id, ready_at, started_at, fence, event_no, epoch, priority, state, unique_while, lane, kind, subject)
	select id, now(), started_at, fence, event_no, epoch, priority, 'pending', unique_while, lane, kind, subject from back where not asks
), asking as (
	insert into trapeze.parked (id, why, run_after, started_at, fence, event_no, epoch, priority, unique_while, lane, kind, subject)
	select id, 'approval', now(), started_at, fence, event_no, epoch, priority, unique_while, lane, kind, subject from back where asks
), events as (
	insert into trapeze.job_events (job, event_no, fence, claim_xid, from_state, to_state, event, actor, fields)
	select id, event_no, fence, claim_xid, state, case when asks then 'awaiting_approval' else 'pending' end, 'job.operator_retry', $2,
		json_build_object('epoch', epoch)
	from back
)
select id from back where not asks`

// reopenSQL makes a job wait again for branches of it that are tried again. Plan: as retryJobsSQL, one row.
const reopenSQL = `
with gone as (
	delete from trapeze.done where id = $1 and state in ('failed', 'cancelled') returning *
), waits as (
	insert into trapeze.parked (id, why, started_at, fence, event_no, epoch, attempt, crashes, priority, lane, kind, subject)
	select g.id, 'children', g.started_at, g.fence, g.event_no + 1, g.epoch + 1, g.attempt, g.crashes, g.priority, g.lane, j.kind,
		j.subject
	from gone g join trapeze.jobs j on j.id = g.id
), fan_out as (
	update trapeze.fan_outs f set ended = false, open = $3, failed = 0 from gone g where f.id = g.id
), event as (
	insert into trapeze.job_events (job, event_no, fence, claim_xid, from_state, to_state, event, actor, fields)
	select id, event_no + 1, fence, claim_xid, state, 'waiting', 'job.operator_retry', $2,
		json_build_object('epoch', epoch + 1, 'branches', $3::int) from gone
)
select id from gone`

// undeferSQL takes back that deferred jobs waited, and their parts that failed: those that succeeded count when they wait again.
// Plan: primary keys.
const undeferSQL = `
with failed as (
	delete from trapeze.parts where id = any($1::bigint[]) and error is not null
)
delete from trapeze.fan_outs where id = any($1::bigint[])`

// newArgsSQL changes the arguments of a job that is to be tried again. Plan: jobs_pkey.
const newArgsSQL = `update trapeze.jobs set args = $2::json where id = $1`

// goingOn are the jobs with which something goes on that is tried again.
type goingOn struct{ pending, waiting []int64 }

// reopen makes a job wait again for its branches that have not succeeded, and adds to on the jobs with which those go on.
func reopen(ctx context.Context, s *store.Store, tx pgx.Tx, pipeline, id int64, actor string, on *goingOn) error {
	type branch struct {
		ID                   int64
		Succeeded, FannedOut bool
	}
	type count struct{ Branches, Open int }
	found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[count], s.In(openCountSQL), []any{id})
	if err != nil {
		return err
	}
	if len(found) == 0 || found[0].Open > 0 {
		return fmt.Errorf("branches of job %d: %w", id, job.ErrStillEnding)
	}
	failed, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[branch], s.In(endedBranchesSQL), []any{pipeline, id})
	if err != nil {
		return err
	}
	if len(failed) < found[0].Branches {
		live, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(openBranchesSQL), []any{pipeline, id, 1})
		if err != nil {
			return err
		}
		if len(live) > 0 { // tried again by itself
			return fmt.Errorf("branch %d of job %d: %w", live[0], id, job.ErrStillEnding)
		}
		return fmt.Errorf("%d of %d branches of job %d: %w", found[0].Branches-len(failed), found[0].Branches, id, job.ErrPruned)
	}
	failed = slices.DeleteFunc(failed, func(b branch) bool { return b.Succeeded })
	if _, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(reopenSQL), []any{id, actor, len(failed)}); err != nil {
		return err
	}
	on.waiting = append(on.waiting, id)
	for _, b := range failed {
		if !b.FannedOut {
			on.pending = append(on.pending, b.ID)
		} else if err := reopen(ctx, s, tx, pipeline, b.ID, actor, on); err != nil {
			return err
		}
	}
	return nil
}
