package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// cancelManySQL cancels the given jobs that are not running, and requests the cancellation of the others. It skips locked rows. Plan: Index
// Scans on live_pkey and parked_pkey, one row per job; fan_outs_pkey.
var cancelManySQL = `
with wanted as materialized (
	select id from unnest($1::bigint[]) as w(id)
), held as materialized (
	select l.id, l.state from wanted w join trapeze.live l on l.id = w.id order by l.id for update of l skip locked
), asked as (
	update trapeze.live l set cancel_requested = true, event_no = l.event_no + 1
	from held h where l.id = h.id and h.state = 'running' and not l.cancel_requested
	returning l.id, l.fence, l.pod, l.event_no
), gone_live as (
	delete from trapeze.live l using held h where l.id = h.id and h.state = 'pending'
	returning l.id, l.state, l.fence, l.event_no, l.epoch, l.attempt, l.crashes, l.priority, l.lane, l.started_at, l.claim_xid,
		l.unique_while, l.kind, l.subject, '' as why
), waits as materialized (
	select p.id from wanted w join trapeze.parked p on p.id = w.id order by p.id for update of p skip locked
), gone_parked as (
	delete from trapeze.parked p using waits w where p.id = w.id
	returning p.id, case p.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end as state,
		p.fence, p.event_no, p.epoch, p.attempt, p.crashes, p.priority, p.lane, p.started_at, null::xid8 as claim_xid,
		p.unique_while, p.kind, p.subject, p.why
), gone as materialized (
	select * from gone_live union all select * from gone_parked
), request as (
	insert into trapeze.cancel_requests (pod, job_id, fence, reason)
	select pod, id, fence, 'cancelled' from asked
	on conflict (pod, job_id, fence) do update set reason = excluded.reason
), ended as (
	insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, started_at,
		claim_xid)
	select id, 'cancelled', 'error', $2::text, fence, event_no + 1, epoch, attempt, crashes, priority, lane, started_at, claim_xid
	from gone
), ` + store.FreeKeys + `, ` + store.ReleaseGuards + `, events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor)
	select id, event_no, fence, 'running', 'running', 'job.cancel_requested', $3 from asked
	union all
	select id, event_no + 1, fence, state, 'cancelled', 'job.cancelled', $3 from gone
), ` + store.FailedBranches + `, parents as (
	select id from gone where why = 'children'
), ` + store.CountBranches + `
select g.id, null::bigint, null::text, null::bigint, ` + store.EndJSON(`'cancelled'`, "$2::text", "null", "null") + ` from gone g
union all select id, fence, pod::text, null, null from asked
union all select null, null, null, id, null from counted where due`

// CancelledMany is the result of cancelling several jobs.
type CancelledMany struct {
	Ended      []job.End   // jobs that were cancelled
	Asked      []job.Lease // running jobs whose pods have to be notified
	OffBalance []int64     // fan-outs that must be settled
}

// CancelMany is like [Cancel] but cancels several jobs, and skips those that have ended or whose rows are locked. reason is stored with the
// cancelled jobs. CancelMany writes the audit entry d unless d is nil.
func CancelMany(ctx context.Context, s *store.Store, ids []int64, reason job.Reason, actor string, d *AuditEntry) (c CancelledMany, err error) {
	type row struct {
		ID, Fence *int64
		Pod       *string
		Due       *int64
		End       *job.End
	}
	var found []row
	if d == nil {
		found, err = store.Rows(ctx, s, pgx.RowToStructByPos[row], cancelManySQL, ids, string(reason), actor)
	} else {
		err = s.Tx(ctx, func(tx pgx.Tx) error {
			found, err = store.QueryPinned(ctx, tx, pgx.RowToStructByPos[row], s.In(cancelManySQL), []any{ids, string(reason), actor})
			if err != nil {
				return err
			}
			return auditIn(ctx, s, tx, *d)
		})
	}
	if err != nil {
		return c, fmt.Errorf("cancel %d jobs: %w", len(ids), err)
	}
	for _, f := range found {
		switch {
		case f.Due != nil:
			c.OffBalance = append(c.OffBalance, *f.Due)
		case f.Pod != nil:
			c.Asked = append(c.Asked, job.Lease{JobID: *f.ID, Fence: *f.Fence, Pod: *f.Pod})
		default:
			c.Ended = append(c.Ended, *f.End)
		}
	}
	return c, nil
}

// isOpen is an SQL condition that is true if job j has not ended and has no cancel request. Written as two exists conditions joined by or,
// it would make PostgreSQL 18 hash whole tables.
const isOpen = `coalesce((select true from trapeze.live l where l.id = j.id and not l.cancel_requested limit 1),
	(select true from trapeze.parked p where p.id = j.id limit 1), false)`

// openBranchesSQL lists the jobs in a fan-out's branches that have not ended and have no cancel request. Plan: jobs_of_pipeline for
// (pipeline, group); primary key lookups.
const openBranchesSQL = `
select j.id from trapeze.jobs j
where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and j.step > 0 and ` + isOpen + ` limit $3`

// OpenBranches lists up to limit jobs in a fan-out's branches that have not ended and have no cancel request.
func OpenBranches(ctx context.Context, s *store.Store, pipeline, id int64, limit int) ([]int64, error) {
	list, err := store.Rows(ctx, s, pgx.RowTo[int64], openBranchesSQL, pipeline, id, limit)
	if err != nil {
		return nil, fmt.Errorf("list the open children of job %d: %w", id, err)
	}
	return list, nil
}

// openOfPipelineSQL lists the jobs in a pipeline that have not ended and have no cancel request. Plan: jobs_of_pipeline; primary key
// lookups.
const openOfPipelineSQL = `
select j.id from (
	select f.id from trapeze.jobs f where f.id = $1 and f.pipeline_id = $1
	union all
	select s.id from trapeze.jobs s where s.pipeline_id = $1 and s.step > 0
) j where ` + isOpen + ` limit $2`

// OpenOfPipeline lists up to limit jobs in a pipeline that have not ended and have no cancel request.
func OpenOfPipeline(ctx context.Context, s *store.Store, id int64, limit int) ([]int64, error) {
	list, err := store.Rows(ctx, s, pgx.RowTo[int64], openOfPipelineSQL, id, limit)
	if err != nil {
		return nil, fmt.Errorf("list the open jobs of pipeline %d: %w", id, err)
	}
	return list, nil
}
