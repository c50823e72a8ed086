package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// retryStateSQL locks the done rows of jobs, so that concurrent retries run one at a time. It also locks their rows in jobs, so that the
// jobs are not pruned in the meantime. For each job, it returns whether the job fanned out to children, and the fan-out that the job is a
// branch of, if any. Plan: the id index of done and primary key lookups, one row per job.
const retryStateSQL = `
select d.id, d.state, ` + hasChildren + `, j.pipeline_id, j.group_id, j.step, j.erased_at is not null or coalesce((select true from trapeze.jobs b
	where b.pipeline_id = j.pipeline_id and coalesce(b.group_id, 0) = j.parent_id and b.step > 0 and b.erased_at is not null limit 1), false)
from trapeze.done d join trapeze.jobs j on j.id = d.id
where d.id = any($1::bigint[]) order by d.id for update of d, j`

// hasChildren is an SQL condition that is true if job d fanned out to children. It is false for a deferred job, which runs again because
// only its handler can arrange for its parts to be completed. The condition avoids exists, because with exists in the select list
// PostgreSQL 18 would hash whole tables.
const hasChildren = `coalesce((select true from trapeze.fan_outs f where f.id = d.id limit 1)
	and (select true from trapeze.deferrals f where f.id = d.id limit 1) is null, false)`

// endedBranchesSQL locks the last jobs in the branches of fan-out $2, so that none of them is pruned in the meantime. For each, it returns
// whether the job succeeded, whether it is impaired, and whether it fanned out to children. Plan: jobs_of_pipeline for (pipeline, group);
// primary key lookups.
const endedBranchesSQL = `
select d.id, d.state = 'succeeded', k.impaired or coalesce((select f.failed + f.impaired > 0 from trapeze.fan_outs f where f.id = d.id limit 1), false), ` + hasChildren + ` from (` + store.BranchTails + `) b
join trapeze.done d on d.id = b.id join trapeze.jobs k on k.id = b.id
where k.erased_at is null order by d.id for update of k`

// openCountSQL locks a fan-out that has ended, and returns the number of its branches and the number of those that have not ended. Plan:
// fan_outs_pkey.
const openCountSQL = `select branches, open from trapeze.fan_outs where id = $1 and ended for update`

// retryJobsSQL makes failed and cancelled jobs pending again, in their next epoch: they are parked as due, and promoted. It keeps the fence, and resets attempts and crashes. The
// caller has reserved the unique key. The key is held only until the job is claimed, because it could otherwise suppress a newer
// submission. If the lane has been deleted, the job moves to the lane of its kind. The event that ended the job contains only the first 500
// characters of the error, so the retry's event keeps the full text of a longer one.
//
// A job needs approval if its lane requires approval or if the job was awaiting approval before. A job that has already run needs approval
// only if its arguments are replaced ($3), or if it was last cancelled while it was awaiting approval. In both cases, its current arguments
// have not been approved. A step that keeps its arguments needs approval only if it was awaiting approval before. Plan: the id index of done; primary
// key lookups; job_events_of_job, backwards to the last event that left the approval state; inserts.
const retryJobsSQL = `
with gone as (
	delete from trapeze.done where id = any($1::bigint[]) and state in ('failed', 'cancelled') returning *
), back as materialized (
	select g.id, g.started_at, g.fence, g.claim_xid, g.state, g.event_no + 1 as event_no, g.epoch + 1 as epoch, g.priority, g.error,
		case when j.unique_key is not null then 'pending' end as unique_while, coalesce(n.name, k.lane, 'default') as lane, j.kind, j.subject,
		a.to_state is not distinct from 'cancelled' or (g.fence = 0 or $3::boolean)
			and (coalesce(n.requires_approval and (j.parent_id is null or $3::boolean), false) or a.to_state is not null) as asks
	from gone g join trapeze.jobs j on j.id = g.id
	left join trapeze.lanes n on n.name = g.lane left join trapeze.lane_kinds k on k.kind = j.kind
	left join lateral (
		select e.to_state from trapeze.job_events e where e.job = g.id and e.from_state = 'awaiting_approval' order by e.event_no desc limit 1
	) a on true
), again as (
	insert into trapeze.parked (id, why, run_after, started_at, fence, event_no, epoch, priority, unique_while, lane, kind, subject)
	select id, case when asks then 'approval' else 'scheduled' end, now(), started_at, fence, event_no, epoch, priority, unique_while, lane, kind,
		subject from back
), events as (
	insert into trapeze.job_events (job, event_no, fence, claim_xid, from_state, to_state, event, actor, fields)
	select id, event_no, fence, claim_xid, state, case when asks then 'awaiting_approval' else 'pending' end, 'job.operator_retry', $2,
		json_strip_nulls(json_build_object('epoch', epoch, 'error', case when length(error) > 500 then error end))
	from back
)
select id from back where not asks`

// reopenSQL makes a job wait again for the branches that are being retried. Plan: as for retryJobsSQL, one row.
const reopenSQL = `
with gone as (
	delete from trapeze.done where id = $1 and state in ('failed', 'cancelled') returning *
), waits as (
	insert into trapeze.parked (id, why, started_at, fence, event_no, epoch, attempt, crashes, priority, lane, kind, subject)
	select g.id, 'children', g.started_at, g.fence, g.event_no + 1, g.epoch + 1, g.attempt, g.crashes, g.priority, g.lane, j.kind,
		j.subject
	from gone g join trapeze.jobs j on j.id = g.id
), fan_out as (
	update trapeze.fan_outs f set ended = false, open = $3, failed = 0, impaired = $4 from gone g where f.id = g.id
), event as (
	insert into trapeze.job_events (job, event_no, fence, claim_xid, from_state, to_state, event, actor, fields)
	select id, event_no + 1, fence, claim_xid, state, 'waiting', 'job.operator_retry', $2,
		json_build_object('epoch', epoch + 1, 'branches', $3::int) from gone
)
select id from gone`

// undeferSQL deletes the waiting state of deferred jobs and their failed parts. Successful parts still count when the job waits again.
// Plan: primary key lookups.
const undeferSQL = `
with failed as (
	delete from trapeze.parts where id = any($1::bigint[]) and error is not null
)
delete from trapeze.fan_outs where id = any($1::bigint[])`

// newArgsSQL changes a retried job's arguments. Plan: jobs_pkey.
const newArgsSQL = `update trapeze.jobs set args = $2::json where id = $1`

// continuing lists the jobs that continue after a retry.
type continuing struct{ pending, waiting []int64 }

// reopen makes a job wait again for the branches that did not succeed, and adds the jobs from which the pipeline continues to on.
func reopen(ctx context.Context, s *store.Store, tx pgx.Tx, pipeline, id int64, actor string, on *continuing) error {
	type branch struct {
		ID                             int64
		Succeeded, Impaired, FannedOut bool
	}
	type count struct{ Branches, Open int }
	found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[count], s.In(openCountSQL), []any{id})
	if err != nil {
		return err
	}
	if len(found) == 0 || found[0].Open > 0 {
		return fmt.Errorf("children of job %d: %w", id, job.ErrStillEnding)
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
		if len(live) > 0 { // a branch has already been retried separately
			return fmt.Errorf("child %d of job %d: %w", live[0], id, job.ErrStillEnding)
		}
		return fmt.Errorf("%d of %d children of job %d: %w", found[0].Branches-len(failed), found[0].Branches, id, job.ErrPruned)
	}
	impaired := 0 // includes branches that were retried separately and finished after the fan-out
	failed = slices.DeleteFunc(failed, func(b branch) bool {
		if b.Succeeded && b.Impaired {
			impaired++
		}
		return b.Succeeded
	})
	if _, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(reopenSQL), []any{id, actor, len(failed), impaired}); err != nil {
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
