package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/store"
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
	select pod, id, fence, case when $2 then 'stopped' else 'cancelled' end from held where state = 'running'
	on conflict (pod, job_id, fence) do update set reason = excluded.reason
), ended as (
	insert into trapeze.done (id, state, outcome, reason, fence, pod, event_no, epoch, attempt, crashes, priority, lane, started_at,
		claim_xid)
	select id, 'cancelled', 'error', case when $2 then 'stopped' else 'cancelled' end, fence, pod, event_no + 1, epoch,
		attempt, crashes, priority, lane, started_at, claim_xid from gone
), ` + store.FreeKeys + `, ended_run as (
	update trapeze.current_runs c set state = 'ended' from gone g
	where g.state = 'running' and g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id
		and c.state = 'running'
), ` + store.ReleaseGuards + `, events as (
	insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event, actor)
	select id, event_no, fence, null::uuid, 'running', 'running', 'job.cancel_requested', $3 from asked
	union all
	select id, event_no + 1, fence, pod, state, 'cancelled', 'job.cancelled', $3 from gone
), ` + store.FailedBranches + `, ` + store.NoParents + `, ` + store.CountBranches + `
select case when state = 'pending' or $2 then 'cancelled' else 'running' end as state, pod::text, fence,
	(select ` + store.EndJSON(`'cancelled'`, `case when $2 then 'stopped' else 'cancelled' end`, "null", "null") + ` from gone g) from held`

// cancelParkedSQL cancels a job that is waiting for a time, for approval or for its children. For a job that waits for children, it also
// requests their cancellation. Plan: Index Scan on parked_pkey, one row.
var cancelParkedSQL = `
with gone as (
	delete from trapeze.parked where id = $1 returning *
), ended as (
	insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, started_at)
	select id, 'cancelled', 'error', case when $2 then 'stopped' else 'cancelled' end, fence, event_no + 1, epoch, attempt,
		crashes, priority, lane, started_at from gone
), ` + store.FreeKeys + `, events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor)
	select id, event_no + 1, fence, case why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end,
		'cancelled', 'job.cancelled', $3 from gone
), ` + store.FailedBranches + `, parents as (
	select id from gone where why = 'children'
), ` + store.CountBranches + `
select 'cancelled', null::text, fence, ` + store.EndJSON(`'cancelled'`, `case when $2 then 'stopped' else 'cancelled' end`, "null", "null") + ` from gone g`

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
// [job.ErrAlreadyTerminal] if it has already ended, and [job.ErrChanged] if it is in a different epoch.
func Cancel(ctx context.Context, s *store.Store, id int64, epoch int, stop bool, actor string, notify func(l job.Lease)) (Cancellation, error) {
	d := AuditEntry{Actor: actor, Action: "job.cancel", Target: jobTarget(id)}
	if stop {
		d.Action = "job.stop"
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
			exists, err := store.Rows(ctx, s, pgx.RowTo[int64], jobExistsSQL, id)
			if err != nil {
				return Cancellation{}, fmt.Errorf("cancel job %d: %w", id, err)
			}
			if len(exists) == 0 {
				return Cancellation{}, fmt.Errorf("cancel job %d: %w", id, job.ErrNotFound)
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

// lockInEpoch locks an unfinished job. It returns [job.ErrChanged] if the job is not in the given epoch, and false if the job has finished
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
			err = job.ErrChanged
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
			result, err := tx.Query(ctx, s.In(look.sql), look.args...)
			if err != nil {
				return err
			}
			list, err := pgx.CollectRows(result, pgx.RowToStructByPos[Cancellation])
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
