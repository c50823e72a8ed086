package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// cancelLiveSQL cancels a due job immediately and requests the cancellation of a running one. With stop, it finishes a running job
// immediately, so that a late result from the job's pod matches no row. The pod learns of the request from its heartbeat, which reads
// cancel_requests. Plan: Index Scan on live_pkey, one row.
var cancelLiveSQL = `
with held as materialized (
	select l.* from trapeze.live l where l.id = $1 for update
), asked as (
	update trapeze.live l set cancel_requested = true, event_no = l.event_no + 1
	from held h where l.id = h.id and h.state = 'running' and not h.cancel_requested and not $2
	returning l.id, l.fence, l.event_no
), gone as (
	delete from trapeze.live l using held h where l.id = h.id and (h.state = 'pending' or $2)
	returning l.*
), request as (
	insert into trapeze.cancel_requests (pod, job_id, fence, reason)
	select pod, id, fence, case when $2 then 'force_cancelled' else 'cancelled' end from held where state = 'running'
	on conflict (pod, job_id, fence) do update set reason = excluded.reason
), ended as (
	insert into trapeze.done (id, state, outcome, reason, fence, pod, event_no, epoch, attempt, crashes, priority, lane, started_at,
		claim_xid)
	select id, 'cancelled', 'error', case when $2 then 'force_cancelled' else 'cancelled' end, fence, pod, event_no + 1, epoch,
		attempt, crashes, priority, lane, started_at, claim_xid from gone
), ` + store.FreeKeys + `, ended_run as (
	update trapeze.subjects c set state = 'free' from gone g
	where g.state = 'running' and g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id
		and c.state = 'held'
), ` + store.ReleaseGuards + `, events as (
	insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event, actor)
	select id, event_no, fence, null::uuid, 'running', 'running', 'job.cancel_requested', $3 from asked
	union all
	select id, event_no + 1, fence, pod, state, 'cancelled', 'job.cancelled', $3 from gone
), ` + store.FailedBranches + `, ` + store.NoParents + `, ` + store.CountBranches + `
select case when state = 'pending' or $2 then 'cancelled' else 'running' end as state, pod::text, fence,
	(select ` + store.EndJSON(`'cancelled'`, `case when $2 then 'force_cancelled' else 'cancelled' end`, "null", "null") + ` from gone g) from held`

// cancelParkedSQL cancels a job that is waiting for a time, for approval or for its children. For a job that waits for children, it also
// requests their cancellation. Plan: Index Scan on parked_pkey, one row.
var cancelParkedSQL = `
with gone as (
	delete from trapeze.parked where id = $1 returning *, 'pending' as state
), ended as (
	insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, started_at)
	select id, 'cancelled', 'error', case when $2 then 'force_cancelled' else 'cancelled' end, fence, event_no + 1, epoch, attempt,
		crashes, priority, lane, started_at from gone
), ` + store.FreeKeys + `, ` + store.ReleaseGuards + `, events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor)
	select id, event_no + 1, fence, case why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end,
		'cancelled', 'job.cancelled', $3 from gone
), ` + store.FailedBranches + `, parents as (
	select id from gone where why = 'children'
), ` + store.CountBranches + `
select 'cancelled', null::text, fence, ` + store.EndJSON(`'cancelled'`, `case when $2 then 'force_cancelled' else 'cancelled' end`, "null", "null") + ` from gone g`

const (
	doneStateSQL = `select state, null::text, fence, null::json from trapeze.done where id = $1 order by epoch desc limit 1`
	jobExistsSQL = `select id from trapeze.jobs where id = $1`
)

// Cancellation is the result of a cancel or stop command.
type Cancellation struct {
	State job.State // cancelled, or running until the handler returns; with [job.ErrAlreadyTerminal], the terminal state
	Pod   *string   // id of the pod that ran the job, if it was running
	Fence int64
	Ended *job.End // nil if this command did not finish the job
}

// Cancel cancels a job. A job that is not running is cancelled immediately. For a running job, Cancel requests the cancellation or, with
// stop, finishes the job immediately. It searches live, parked and done in this order, and repeats the search if the job was moving between
// them. If epoch is not 0, the job must be in that epoch.
//
// If one of the handler's transactions has locked the job's row, the pod is asked to cancel the handler, through its heartbeat and through
// notify. Cancel then retries until the transaction has ended. It returns [job.ErrNotFound] if the job does not exist,
// [job.ErrAlreadyTerminal] if it has already ended, and [job.ErrConflict] if it is in a different epoch.
func Cancel(ctx context.Context, s *store.Store, id int64, epoch int, stop bool, actor string, notify func(l job.Lease)) (Cancellation, error) {
	d := AuditEntry{Actor: actor, Action: "job.cancel", Target: jobTarget(id)}
	if stop {
		d.Action = "job.force_cancel"
	}
	return cancel(ctx, s, id, epoch, stop, actor, notify, &d)
}

// CancelAmong is like [Cancel], but for one of several jobs that share an audit entry, which has already been written.
func CancelAmong(ctx context.Context, s *store.Store, id int64, actor string, notify func(l job.Lease)) (Cancellation, error) {
	return cancel(ctx, s, id, 0, false, actor, notify, nil)
}

func cancel(ctx context.Context, s *store.Store, id int64, epoch int, stop bool, actor string, notify func(l job.Lease), d *AuditEntry) (Cancellation, error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	for wasTold := false; ; {
		found, err := cancelOnce(ctx, s, id, epoch, stop, actor, d)
		switch {
		case isHeld(err):
			if err := NotifyHandler(ctx, s, id, notify); err != nil {
				return Cancellation{}, fmt.Errorf("cancel job %d: %w", id, err)
			}
			wasTold = true
		case err != nil:
			return Cancellation{}, fmt.Errorf("cancel job %d: %w", id, err)
		case len(found) == 1 && found[0].ended && !(wasTold && found[0].State == job.Cancelled):
			return found[0].Cancellation, fmt.Errorf("cancel job %d, which ended as %s: %w", id, found[0].State, job.ErrAlreadyTerminal)
		case len(found) == 1:
			return found[0].Cancellation, nil
		default:
			if err := mustExist(ctx, s, id); err != nil {
				return Cancellation{}, fmt.Errorf("cancel job %d: %w", id, err)
			}
		}
		select {
		case <-ctx.Done():
			return Cancellation{}, fmt.Errorf("cancel job %d: its row is locked by a transaction that does not end: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cancelled is the result of a cancellation. If ended is set, the job had already ended in the terminal state State.
type cancelled struct {
	Cancellation
	ended bool
}

// lockLiveSQL locks a job's row before a command reads it. Without the lock, a statement that waits for a concurrent transaction would see the
// new row, but not the guard that the transaction has written. The subject would then stay busy. live is searched only if a row
// was locked. If a priority change or a promotion has replaced the row in the meantime, the next search finds the new row.
const (
	lockLiveSQL      = `select id from trapeze.live where id = $1 for update`
	notifyHandlerSQL = `
insert into trapeze.cancel_requests (pod, job_id, fence, reason)
select pod, id, fence, 'cancelled' from trapeze.live where id = $1 and state = 'running'
on conflict (pod, job_id, fence) do update set reason = cancel_requests.reason
returning job_id, fence, pod::text`
)

const (
	// lockParkedSQL locks a parked job. Plan: parked_pkey.
	lockParkedSQL = `select id from trapeze.parked where id = $1 for update`
	// openEpochSQL reads an unfinished job's epoch. Plan: live_pkey, parked_pkey.
	openEpochSQL = `select epoch from trapeze.live where id = $1 union all select epoch from trapeze.parked where id = $1`
)

// lockInEpoch locks an unfinished job. It returns [job.ErrConflict] if the job is not in the given epoch, and false if the job has finished
// or is moving between tables. It compares the epochs before it waits for a lock: a cancellation that has to wait notifies
// the job's handler, and must not notify the handler of another epoch.
func lockInEpoch(ctx context.Context, s *store.Store, tx pgx.Tx, id int64, epoch int) (locked bool, err error) {
	for _, lock := range []string{"", lockLiveSQL, lockParkedSQL} {
		if lock != "" {
			tag, err := tx.Exec(ctx, s.In(lock), id)
			if err != nil {
				return false, err
			}
			locked = locked || tag.RowsAffected() > 0
		}
		at, err := store.QueryPinned(ctx, tx, pgx.RowTo[int], s.In(openEpochSQL), []any{id})
		if err == nil && len(at) > 0 && at[0] != epoch {
			err = job.ErrConflict
		}
		if err != nil {
			return false, err
		}
	}
	return locked, nil
}

// cancelOnce searches live, parked and done for a job, and cancels it there. It writes the audit entry d unless d is nil.
func cancelOnce(ctx context.Context, s *store.Store, id int64, epoch int, stop bool, actor string, d *AuditEntry) (found []cancelled, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		found = nil
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
		}
		open := true
		if epoch != 0 {
			var err error
			if open, err = lockInEpoch(ctx, s, tx, id, epoch); err != nil {
				return err
			}
		}
		locked, err := tx.Exec(ctx, s.In(lockLiveSQL), id)
		if err != nil {
			return err
		}
		looks := []struct {
			sql   string
			args  []any
			ended bool
		}{
			{cancelLiveSQL, []any{id, stop, actor}, false},
			{cancelParkedSQL, []any{id, stop, actor}, false},
			{doneStateSQL, []any{id}, true},
		}
		switch {
		case !open:
			looks = looks[2:]
		case locked.RowsAffected() == 0:
			looks = looks[1:]
		}
		for _, look := range looks {
			list, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[Cancellation], look.sql, look.args...)
			if err != nil {
				return err
			}
			for _, c := range list {
				found = append(found, cancelled{c, look.ended})
				if d == nil || look.ended {
					return nil
				}
				d.After = map[string]any{"state": c.State}
				return auditIn(ctx, s, tx, *d)
			}
		}
		return nil
	})
	return found, err
}

// mustExist returns [job.ErrNotFound] if a job does not exist.
func mustExist(ctx context.Context, s *store.Store, id int64) error {
	_, err := view.One(store.Rows(ctx, s, pgx.RowTo[int64], jobExistsSQL, id))
	return err
}

// isHeld reports whether err means that a statement timed out while waiting for a lock (55P03).
func isHeld(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

// NotifyHandler asks the pod that is running a job to cancel the job's handler. It neither changes the job's row nor cancels the job
// itself.
func NotifyHandler(ctx context.Context, s *store.Store, id int64, notify func(l job.Lease)) error {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Lease], notifyHandlerSQL, id)
	if err != nil {
		return err
	}
	for _, l := range list {
		notify(l)
	}
	return nil
}

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
		l.unique_while, l.kind, l.subject, l.key, '' as why
), waits as materialized (
	select p.id from wanted w join trapeze.parked p on p.id = w.id order by p.id for update of p skip locked
), gone_parked as (
	delete from trapeze.parked p using waits w where p.id = w.id
	returning p.id, case p.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end as state,
		p.fence, p.event_no, p.epoch, p.attempt, p.crashes, p.priority, p.lane, p.started_at, null::xid8 as claim_xid,
		p.unique_while, p.kind, p.subject, p.key, p.why
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
	return view.Rows(ctx, s, fmt.Sprintf("list the open children of job %d", id), pgx.RowTo[int64], openBranchesSQL, pipeline, id, limit)
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
	return view.Rows(ctx, s, fmt.Sprintf("list the open jobs of pipeline %d", id), pgx.RowTo[int64], openOfPipelineSQL, id, limit)
}

// ofJob joins row s with the job's row in jobs, and contains the conditions on that row. Null arguments match everything. Without the
// offset, the planner would start by reading all of jobs, because it expects few rows to meet all these conditions.
const ofJob = `cross join lateral (
	select 1 from trapeze.jobs j where j.id = s.id and ($6::bigint is null or j.pipeline_id = $6) and ($7::bigint is null or j.parent_id = $7)
		and ($8::timestamptz is null or j.created_at >= $8) and ($13 or j.group_id is null)`

// matchOpenSQL lists jobs that have not ended and have no cancel request, ordered by id. Plan: live_pkey and parked_pkey starting after an
// id, each up to the limit; jobs_pkey for those with the right kind, lane, subject, key and state.
const matchOpenSQL = `
(
	select s.id from trapeze.live s ` + ofJob + ` offset 0) j
	where s.id > $1 and not s.cancel_requested and $10::text is null and $11::text is null and $12::text is null and ($2::text[] is null or s.state = any($2)) and ($3::text is null or s.kind = $3)
		and ($4::text is null or s.lane = $4) and ($5::text is null or s.subject = $5) and ($14::text is null or s.key = $14)
	order by s.id limit $9
) union all (
	select s.id from trapeze.parked s ` + ofJob + ` offset 0) j
	where s.id > $1 and ($2::text[] is null
			or case s.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end = any($2))
		and ($3::text is null or s.kind = $3) and ($4::text is null or s.lane = $4) and ($5::text is null or s.subject = $5)
		and ($14::text is null or s.key = $14) and ($10::text is null or s.why = $10) and $11::text is null and $12::text is null
	order by s.id limit $9
)
order by id limit $9`

// matchEndedSQL lists failed and cancelled jobs, ordered by id. Plan: the id index of done of each of their days starting after an id, jobs_pkey for
// each; stops at the limit.
const matchEndedSQL = `
select s.id from trapeze.done s ` + ofJob + `
		and ($3::text is null or j.kind = $3) and ($5::text is null or j.subject = $5) and ($14::text is null or j.key = $14) offset 0) j
where s.id > $1 and s.state in ('failed', 'cancelled') and s.state = any($2::text[]) and ($4::text is null or s.lane = $4)
	and ($10::text is null or s.reason = $10) and ($11::text is null or s.error_class = $11) and ($12::text is null or s.error_code = $12)
order by s.id limit $9`

// Match returns, in ascending order, up to limit ids of jobs that match a filter, starting after the id after. The filter has the same
// meaning as when it is used to list jobs. If ended is set, Match selects failed and cancelled jobs in the filter's states, of which there
// must be at least one. Otherwise it selects jobs that have not ended and have no cancel request. It ignores the filter's page and limit.
func Match(ctx context.Context, s *store.Store, f job.Filter, ended bool, after int64, limit int) ([]int64, error) {
	sql := matchOpenSQL
	if ended {
		sql = matchEndedSQL
	}
	list, err := store.Rows(ctx, s, pgx.RowTo[int64], sql, after, store.Texts(f.States), store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), store.Some(f.Pipeline),
		store.Some(f.Parent), store.Some(f.Since), limit, store.Some(string(f.Reason)), store.Some(string(f.ErrorClass)), store.Some(f.ErrorCode), f.WithChildren(), store.Some(f.Key))
	return list, text.Wrap(err, "find jobs")
}
