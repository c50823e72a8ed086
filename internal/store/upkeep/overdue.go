package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// overdueSQL fails jobs that exceed the maximum age of their lane, measured from when they became due. Pending and running jobs age, and those
// that wait for their subject.
// Running jobs end immediately, as if stopped: the pod learns of the end from its heartbeat, which reads cancel_requests, and a late result
// matches no row. A job whose row is locked is skipped. If it is running, its pod is asked to stop the handler, which also ends the
// transaction that holds the lock. A job with a committed cancel request ends as cancelled.
//
// Jobs that have not started by their time limit fail with the reason expired, regardless of the reason for which they wait.
//
// A recovered job precedes its lane's backlog and no longer has the time at which it became due. Its age is measured from its latest claim
// and is therefore never overestimated. A job that was claimed after the snapshot has a different fence. It is left to the next run of the
// statement.
//
// Plan: per lane and rank, an Index Scan on live_for_claim that stops at the first job that is young enough; then primary keys. Only
// overdue and recovered jobs are read. For expired jobs, live_start_by, which also lists started ones, and parked_start_by.
var overdueSQL = `
with aged as materialized (
	select name, coalesce(max_age_s * 1000::bigint, $1::bigint) * interval '1 millisecond' as age from trapeze.lanes
), old as materialized (
	select o.id, o.fence, o.pod, n.age from aged n cross join ` + store.AllRanks + ` cross join lateral (
		select l.id, l.fence, l.pod from trapeze.live l
		where l.lane = n.name and (-l.priority) = rank and l.ready_at < now() - n.age
			and (l.ready_at > 'epoch' or l.claimed_at < now() - n.age)
		order by l.lane, (-l.priority), l.ready_at, l.id limit $2
	) o where n.age > interval '0' limit $2
), late as materialized (
	select k.id, k.fence, null::uuid as pod from trapeze.live k
	where k.start_by < now() and k.state = 'pending' and k.started_at is null order by k.start_by limit $2
), held as materialized (
	select l.id, o.age from (select id, fence, age from old union all select id, fence, null from late) o join trapeze.live l on l.id = any(array[o.id])
	where l.fence = o.fence order by o.id for update of l skip locked
), held_parked as materialized (
	select p.id, n.age from aged n cross join ` + store.AllRanks + ` cross join lateral (
		select p.id from trapeze.parked p
		where p.lane = n.name and (-p.priority) = rank and p.why in ('subject', 'key') and p.run_after < now() - n.age
		order by p.lane, (-p.priority), p.run_after, p.id limit $2 for update skip locked
	) p where n.age > interval '0' limit $2
), late_parked as materialized (
	select p.id from trapeze.parked p where p.start_by < now() and p.started_at is null order by p.start_by limit $2 for update skip locked
), gone_live as (
	delete from trapeze.live l using held h where l.id = any(array[h.id])
	returning ` + overdueColumns + `, l.state, l.pod, l.cancel_requested, l.claim_xid, h.age
), gone_parked as (
	delete from trapeze.parked l using (select id, age from held_parked union all select id, null from late_parked) h where l.id = any(array[h.id])
	returning ` + overdueColumns + `, case l.why when 'approval' then 'awaiting_approval' else 'pending' end, null::uuid, false, null::xid8, h.age
), gone as materialized (
	select g.*, case when cancel_requested then 'cancelled' else 'failed' end as ends,
		case when cancel_requested then 'cancelled' when late then 'expired' else 'deadline' end as why,
		case when cancel_requested then null when late then 'not started by ' || start_by else 'not ended within ' || age || ' of becoming due' end as error,
		case when not cancel_requested then 'deadline' end as class
	from (select * from gone_live union all select * from gone_parked) g
), told as (
	insert into trapeze.cancel_requests (pod, job_id, fence, reason)
	select pod, id, fence, 'deadline' from old where pod is not null
	on conflict (pod, job_id, fence) do nothing
), ended as (
	insert into trapeze.done (id, state, outcome, reason, error, error_class, fence, pod, event_no, epoch, attempt, crashes, priority,
		lane, started_at, claim_xid)
	select id, ends, 'error', why, error, class, fence, pod, event_no + 1, epoch, attempt, crashes, priority, lane, started_at,
		claim_xid from gone
), ` + store.FreeKeys + `, freed_guards as (
	update trapeze.subjects c set state = 'free' from gone g
	where g.state = 'running' and g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id
		and c.state = 'held'
), ` + store.ReleaseGuards + `, events as (
	insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event, level, message, fields)
	select id, event_no + 1, fence, pod, state, ends, 'job.' || ends, 'error', error, json_build_object('reason', why, 'error_class', class) from gone
), ` + store.FailedBranches + `, ` + store.NoParents + `, ` + store.CountBranches + `
select g.id, g.fence, g.pod::text, ` + store.EndJSON("g.ends", "g.why", "g.error", "g.class") + ` from gone g
union all
select id, fence, pod::text, null from old where id not in (select id from gone)`

// overdueColumns are the columns of row l of live or parked that an overdue job's end needs.
const overdueColumns = `l.id, l.kind, l.subject, l.key, l.lane, l.fence, l.event_no, l.epoch, l.attempt, l.crashes, l.priority, l.started_at, l.unique_while, l.start_by,
	coalesce(l.start_by < now() and l.started_at is null, false) as late`

// Overdue is a job that exceeds its lane's maximum age.
type Overdue struct {
	ID, Fence int64
	Pod       *string  // the pod to notify; nil if the job was pending
	Ended     *job.End // nil if the row was locked, in which case the next call tries again
}

// EndOverdue fails at most limit jobs that have not started by their time limit, and as many that have been pending or running for longer than their lane's max_age_s, measured from when they
// became due. age applies to lanes without max_age_s; 0 or less means no limit. Jobs that are waiting for a time, for approval or for
// their branches do not age. Several pods can run EndOverdue concurrently.
func EndOverdue(ctx context.Context, s *store.Store, age time.Duration, limit int) ([]Overdue, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Overdue], overdueSQL, max(age.Milliseconds(), 0), limit)
	if err != nil {
		return nil, fmt.Errorf("fail overdue jobs: %w", err)
	}
	return list, nil
}
