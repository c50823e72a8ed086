package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// approveSQL releases a job that is awaiting approval. The job becomes a scheduled one, and is promoted at its time, which may have passed. If
// two approvals run concurrently, the second waits for the row lock and then finds the job already approved. Plan: Index
// Scan on parked_pkey, one row. The reason is checked only after the row has been found: as a condition of the lookup, it would make the
// planner use the index of all jobs that await approval.
const approveSQL = `
with held as materialized (
	select p.id, p.why = 'approval' as awaits from trapeze.parked p where p.id = $1 for update
), approved as (
	update trapeze.parked p set why = 'scheduled', run_after = greatest(p.run_after, now()), event_no = p.event_no + 1
	from held h where p.id = h.id and h.awaits
	returning p.id, p.event_no, p.fence
), event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor)
	select id, event_no, fence, 'awaiting_approval', 'pending', 'job.approved', $2 from approved
)
select id from held where awaits`

// lockApprovalSQL locks a job that awaits approval. It returns the job's epoch, whether a lane requires approval by another person, and
// whether the given principal submitted the job or sent it back for approval by retrying it, which can change the arguments. The lock
// prevents the job from being cancelled and retried before it is approved. Plan: parked_pkey and jobs_pkey, one row; job_events_of_job;
// lanes and lane_kinds are small.
const lockApprovalSQL = `
select p.epoch, ` + view.SecondPerson + `, j.submitter = $2 or coalesce((select true from trapeze.job_events e
	where e.job = p.id and e.to_state = 'awaiting_approval' and e.actor = $2 limit 1), false)
from trapeze.parked p join trapeze.jobs j on j.id = p.id
where p.id = $1 and p.why = 'approval' for update of p`

// Approval holds the conditions that must be met for a job to be approved.
type Approval struct {
	Second bool // the actor must not be the submitter; some lanes always require this
	Epoch  int  // the epoch that the job must be in, because only a retry can change the arguments; 0 means any
}

// Approve releases a job that is awaiting approval, on behalf of actor, if the conditions in only are met. It returns [job.ErrConflict] if
// the job is in a different epoch. It returns [job.ErrOwnSubmission] if a second person is required and actor submitted the job or sent it
// back for approval by retrying it, [job.ErrNotFound] if the job does not exist, and [job.ErrNotAwaitingApproval] if it is not awaiting
// approval.
func Approve(ctx context.Context, s *store.Store, id int64, only Approval, actor string) error {
	type locked struct {
		Epoch       int
		Second, Own bool
	}
	var found []int64
	err := s.Tx(ctx, func(tx pgx.Tx) (err error) {
		found = nil // discard the result of an attempt that was rolled back
		held, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[locked], s.In(lockApprovalSQL), []any{id, actor})
		switch {
		case err != nil || len(held) == 0:
			return err
		case only.Epoch != 0 && held[0].Epoch != only.Epoch:
			return job.ErrConflict
		case held[0].Own && (only.Second || held[0].Second):
			return job.ErrOwnSubmission
		}
		if found, err = store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(approveSQL), []any{id, actor}); err != nil || len(found) == 0 {
			return err
		}
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.approve", Target: jobTarget(id)})
	})
	if err == nil && len(found) == 0 {
		err = orElse(mustExist(ctx, s, id), job.ErrNotAwaitingApproval)
	}
	return text.Wrap(err, "approve job %d", id)
}

// expireSQL cancels jobs that were not approved in time, oldest first. It skips jobs that are concurrently being approved or cancelled.
// Plan: Index Scan on parked_for_approval, stops at the limit; jobs_pkey and fan_outs_pkey.
var expireSQL = `
with late as materialized (
	select p.id from trapeze.parked p
	where p.why = 'approval' and p.run_after < now() - $1::bigint * interval '1 millisecond'
	order by p.run_after, p.id limit $2 for update skip locked
), gone as (
	delete from trapeze.parked p using late e where p.id = e.id returning p.*
), ended as (
	insert into trapeze.done (id, state, outcome, reason, error, fence, event_no, epoch, attempt, crashes, priority, lane, started_at)
	select id, 'cancelled', 'error', 'expired', 'nobody approved it in time', fence, event_no + 1, epoch, attempt, crashes,
		priority, lane, started_at from gone
), ` + store.FreeKeys + `, events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, level, message, fields)
	select id, event_no + 1, fence, 'awaiting_approval', 'cancelled', 'job.cancelled', 'warn', 'nobody approved it in time',
		'{"reason":"expired"}'::json from gone
), ` + store.FailedBranches + `, ` + store.NoParents + `, ` + store.CountBranches + `
select ` + store.EndJSON(`'cancelled'`, `'expired'`, `'nobody approved it in time'`, "null") + ` from gone g`

// Expire cancels up to limit jobs that have been awaiting approval for longer than after, counted from the time at which each job would
// have become due. It returns the cancelled jobs.
func Expire(ctx context.Context, s *store.Store, after time.Duration, limit int) ([]job.End, error) {
	ended, err := store.Rows(ctx, s, pgx.RowTo[job.End], expireSQL, after.Milliseconds(), limit)
	return ended, text.Wrap(err, "expire jobs that await approval")
}

// asksApprovalSQL reports whether any of the given lanes, or the default lane of any of the given kinds, requires approval, and whether the
// approver must not be the submitter. Plan: lane_kinds_pkey, lanes_pkey; lane_templates for a lane that does not exist.
const asksApprovalSQL = `
select count(*) > 0, coalesce(bool_or(n.four_eyes), false)
from (select unnest($1::text[]) union select coalesce(k.lane, 'default') from unnest($2::text[]) as w(kind) left join trapeze.lane_kinds k on k.kind = w.kind) as w(lane)
cross join lateral trapeze.lane_rules(w.lane) n where n.requires_approval`

// Asks describes the approval that a set of lanes requires.
type Asks struct {
	Approval bool
	FourEyes bool // the approver must not be the submitter
}

// AsksApproval reports whether any of the given lanes, or the default lane of any of the given kinds, requires approval.
func AsksApproval(ctx context.Context, s *store.Store, lanes, kinds []string) (Asks, error) {
	return view.Row(ctx, s, "read which lanes require approval", pgx.RowToStructByPos[Asks], asksApprovalSQL, lanes, kinds)
}

// kindAttemptsSQL reads, for each of the given kinds, the highest attempt limit that any open pod reports. Plan: one pass over pods, which
// is small, for each kind.
const kindAttemptsSQL = `
select w.kind, (select max((p.limits -> w.kind ->> 'max_attempts')::int) from trapeze.pods p where p.closed_at is null)
from unnest($1::text[]) as w(kind)`

// KindAttempts returns each given kind's attempt limit. The limit is nil for a kind that no open pod handles.
func KindAttempts(ctx context.Context, s *store.Store, kinds []string) (map[string]*int, error) {
	type row struct {
		Kind string
		Most *int
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], kindAttemptsSQL, kinds)
	if err != nil {
		return nil, fmt.Errorf("read the limits on attempts: %w", err)
	}
	most := map[string]*int{}
	for _, r := range found {
		most[r.Kind] = r.Most
	}
	return most, nil
}
