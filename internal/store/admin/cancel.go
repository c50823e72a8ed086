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

// cancelLiveSQL cancels a due job at once, asks a running one to end, or, with stop, ends a running one at once: its
// owner's late result then matches no row. The owner learns of it by its heartbeat, from cancel_requests.
// Plan: Index Scan on live_pkey, one row.
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
), events as (
	insert into trapeze.job_events (job, event_no, fence, boot, from_state, to_state, event, actor)
	select id, event_no, fence, null::uuid, 'running', 'running', 'job.cancel_requested', $3 from asked
	union all
	select id, event_no + 1, fence, pod, state, 'cancelled', 'job.cancelled', $3 from gone
), ` + store.FailedBranches + `, ` + store.NoParents + `, ` + store.CountBranches + `
select case when state = 'pending' or $2 then 'cancelled' else 'running' end as state, pod::text, fence,
	(select ` + store.EndJSON(`'cancelled'`, `case when $2 then 'stopped' else 'cancelled' end`, "null", "null") + ` from gone g) from held`

// cancelParkedSQL cancels a job that waits: for its moment, for approval, or for its children, whose cancellation it calls for.
// Plan: Index Scan on parked_pkey, one row.
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

// Cancellation is what a cancel or stop came to.
type Cancellation struct {
	State job.State // cancelled; running while its owner is being told; with [job.ErrAlreadyTerminal], where it ended
	Pod   *string   // the owner, when it was running
	Fence int64
	Ended *job.End // nil: the job did not end by this
}

// Cancel ends a job that does not run, at once, and asks a running one to end; with stop it ends a running one too. It
// looks in live, parked and done in that order, and again when a job was just moving between them.
//
// While a transaction of the job's handler holds its row, the pod is told to end the handler, by its heartbeat and by
// told, and the row is tried again until the transaction is over. Errors: [job.ErrNotFound], [job.ErrAlreadyTerminal].
func Cancel(ctx context.Context, s *store.Store, id int64, stop bool, actor string, told func(l job.Lease)) (Cancellation, error) {
	d := Deed{Actor: actor, Action: "job.cancel", Target: jobTarget(id)}
	if stop {
		d.Action = "job.stop"
	}
	return cancel(ctx, s, id, stop, actor, told, &d)
}

// CancelAmong is [Cancel] of one of many jobs that a deed is about which is written down already.
func CancelAmong(ctx context.Context, s *store.Store, id int64, actor string, told func(l job.Lease)) (Cancellation, error) {
	return cancel(ctx, s, id, false, actor, told, nil)
}

func cancel(ctx context.Context, s *store.Store, id int64, stop bool, actor string, told func(l job.Lease), d *Deed) (Cancellation, error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	for wasTold := false; ; {
		found, err := cancelOnce(ctx, s, id, stop, actor, d)
		switch {
		case isHeld(err):
			if err := Tell(ctx, s, id, told); err != nil {
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
			return Cancellation{}, fmt.Errorf("cancel job %d: its row is held by a transaction that does not end: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cancelled is a cancellation, or where the job had ended before.
type cancelled struct {
	Cancellation
	ended bool
}

// lockLiveSQL locks a job's row before a command looks there. A statement that waited for the row behind a claim would see the
// row as the claim left it, but not the run that the same claim put into current_runs, and leave that subject taken: where nothing
// was locked, nothing is looked for. The row may have been put anew meanwhile, by a nice or a promotion; then it is for the next look.
const (
	lockLiveSQL    = `select id from trapeze.live where id = $1 for update`
	tellHandlerSQL = `
insert into trapeze.cancel_requests (pod, job_id, fence, reason)
select pod, id, fence, 'cancelled' from trapeze.live where id = $1 and state = 'running'
on conflict (pod, job_id, fence) do update set reason = cancel_requests.reason
returning job_id, fence, pod::text`
)

// cancelOnce looks for a job in live, parked and done, and ends it where it is; d is written down with it, unless it is nil.
func cancelOnce(ctx context.Context, s *store.Store, id int64, stop bool, actor string, d *Deed) (found []cancelled, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		found = nil
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
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
		if locked.RowsAffected() == 0 {
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

// isHeld reports whether a statement gave up waiting for a lock (55P03).
func isHeld(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

// Tell asks the pod that runs a job to end its handler, without touching the job's row: the job is not cancelled by that.
func Tell(ctx context.Context, s *store.Store, id int64, told func(l job.Lease)) error {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Lease], tellHandlerSQL, id)
	if err != nil {
		return err
	}
	for _, l := range list {
		told(l)
	}
	return nil
}
