package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// overdueSQL fails jobs that are older than their lane lets them be: pending or running for that long since they became due.
// Running ones end at once, as by a stop: their owner learns of it by its heartbeat, from cancel_requests, and its late
// result matches no row. A job whose row somebody holds is passed by; if it runs, its owner is told to end the handler,
// and with it the transaction that holds the row. One whose cancel was committed ends cancelled.
//
// A job that was recovered stands ahead of its lane's backlog, with no moment at which it became due: its age counts from its
// latest claim, which is never too long. A row that was claimed since the snapshot has another fence, and is left to the
// next look: the run that the claim put into current_runs would not be seen here.
// Plan: per lane and rank an Index Scan on live_for_claim that ends at the moment from which jobs are young enough; then
// primary keys. Rows touched: the overdue ones and those that were recovered.
var overdueSQL = `
with old as materialized (
	select o.id, o.fence, o.pod, n.age from (
		select name, coalesce(max_age_s * 1000::bigint, $1::bigint) * interval '1 millisecond' as age from trapeze.lanes
	) n cross join ` + store.AllRanks + ` cross join lateral (
		select l.id, l.fence, l.pod from trapeze.live l
		where l.lane = n.name and (-l.priority) = rank and l.ready_at < now() - n.age
			and (l.ready_at > 'epoch' or l.claimed_at < now() - n.age)
		order by l.lane, (-l.priority), l.ready_at, l.id limit $2
	) o where n.age > interval '0' limit $2
), held as materialized (
	select l.id, o.age from old o join trapeze.live l on l.id = o.id
	where l.fence = o.fence order by l.id for update of l skip locked
), gone as (
	delete from trapeze.live l using held h where l.id = h.id
	returning l.*, case when l.cancel_requested then 'cancelled' else 'failed' end as ends,
		case when l.cancel_requested then 'cancelled' else 'deadline' end as why,
		case when not l.cancel_requested then 'not ended within ' || h.age || ' of becoming due' end as error,
		case when not l.cancel_requested then 'deadline' end as class
), told as (
	insert into trapeze.cancel_requests (pod, job_id, fence, reason)
	select pod, id, fence, 'deadline' from old where pod is not null
	on conflict (pod, job_id, fence) do nothing
), ended as (
	insert into trapeze.done (id, state, outcome, reason, error, error_class, fence, pod, event_no, epoch, attempt, crashes, priority,
		lane, started_at, claim_xid)
	select id, ends, 'error', why, error, class, fence, pod, event_no + 1, epoch, attempt, crashes, priority, lane, started_at,
		claim_xid from gone
), ` + store.FreeKeys + `, ended_runs as (
	update trapeze.current_runs c set state = 'ended' from gone g
	where g.state = 'running' and g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id
		and c.state = 'running'
), events as (
	insert into trapeze.job_events (job, event_no, fence, boot, from_state, to_state, event, level, message, fields)
	select id, event_no + 1, fence, pod, state, ends, 'job.' || ends, 'error', error, json_build_object('reason', why, 'error_class', class) from gone
), ` + store.FailedBranches + `, ` + store.NoParents + `, ` + store.CountBranches + `
select g.id, g.fence, g.pod::text, ` + store.EndJSON("g.ends", "g.why", "g.error", "g.class") + ` from gone g
union all
select id, fence, pod::text, null from old where id not in (select id from gone)`

// Overdue is a job that was found to be too old.
type Overdue struct {
	ID, Fence int64
	Pod       *string  // its owner, which is to be told; nil: it was pending
	Ended     *job.End // nil: somebody held its row, so look again
}

// EndOverdue fails jobs that have been pending or running for longer than their lane's max_age_s, or than age where the lane
// says nothing, counted from when they became due; at most limit of them. An age of 0 or less is none. What waits for its
// moment, for approval or for others does not age. Safe to run on several pods at once.
func EndOverdue(ctx context.Context, s *store.Store, age time.Duration, limit int) ([]Overdue, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Overdue], overdueSQL, max(age.Milliseconds(), 0), limit)
	if err != nil {
		return nil, fmt.Errorf("end overdue jobs: %w", err)
	}
	return list, nil
}
