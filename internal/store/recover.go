package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// closeLapsedSQL closes the rows of pods whose leases have expired, or expire later than now + 2 leases because a clock jumped. It does not
// touch leases that expire at or after spared, because an outage had begun by then and their pods may still be reconnecting. It skips
// locked rows, because a heartbeat or another pod is updating them. Plan: pods_open; a handful of rows.
var closeLapsedSQL = newStatement(`
with lapsed as materialized (
	select p.id from trapeze.pods p
	where p.closed_at is null and p.id <> @pod
		and (p.lease_until < now() or p.lease_until > now() + 2 * @lease::bigint * interval '1 millisecond')
		and (@spared::timestamptz is null or p.lease_until < @spared)
	order by p.id for update skip locked
), closed as (
	update trapeze.pods p set closed_at = now(), closed = 'lapsed' from lapsed l where p.id = l.id
	returning p.id, p.name, p.lease_until
), events as (
	insert into trapeze.job_events (event_no, pod, event, level, message)
	select row_number() over (order by id), id, 'pod.lapsed', 'warn', name from closed
)
select id::text, name, lease_until, now() - lease_until from closed`)

// Lapsed is a pod whose row was closed because its lease expired.
type Lapsed struct {
	PodID      string
	Name       string
	LeaseUntil time.Time
	Late       time.Duration // how long ago the lease expired
}

// CloseLapsed closes the rows of all other pods whose leases have expired. From then on, their heartbeats are rejected. Leases that expire
// at or after spared are left alone, unless spared is zero.
func CloseLapsed(ctx context.Context, s *Store, podID string, lease time.Duration, spared time.Time) ([]Lapsed, error) {
	list, err := run(ctx, s, pgx.RowToStructByPos[Lapsed], closeLapsedSQL, args{{"pod", podID}, {"lease", lease.Milliseconds()}, {"spared", Some(spared)}})
	if err != nil {
		return nil, fmt.Errorf("close lapsed pods: %w", err)
	}
	return list, nil
}

var (
	sweepsDueSQL = `select p.id::text from trapeze.pods p where ` + sweepDue + ` order by p.id`
	sweptSQL     = newStatement(`update trapeze.pods set swept_at = now() where id = any(@pods::uuid[])`)
)

// SweepsDue lists the closed pods for which a search for jobs is due.
func SweepsDue(ctx context.Context, s *Store) ([]string, error) {
	list, err := Rows(ctx, s, pgx.RowTo[string], sweepsDueSQL)
	if err != nil {
		return nil, fmt.Errorf("list sweeps: %w", err)
	}
	return list, nil
}

// Swept records that the sweep for the closed pods' jobs has run.
func Swept(ctx context.Context, s *Store, podIDs []string) error {
	if _, err := run(ctx, s, pgx.RowTo[int], sweptSQL, args{{"pods", podIDs}}); err != nil {
		return fmt.Errorf("record a sweep: %w", err)
	}
	return nil
}

// recoverPageSQL recovers closed pods' jobs within one page of live. A job becomes pending again, ahead of others of its priority. The crash is
// counted, but the attempt is not. A job that has reached its crash limit fails, and a job with a cancel request is cancelled. Recovery
// needs no slot, lane or handler. The fence does not change. A later write by the lapsed pod matches neither the pod nor, after the next
// claim, the fence.
//
// A job is isolated if its next crash would be its last, or if it has crashed twice. A pod runs only one isolated job at a time. This way,
// a job that kills its pods does not exhaust the crash limits of other suspects.
//
// Plan: Index Scan on live_pkey over the page in id order, which costs the same with any table statistics.
var recoverPageSQL = newStatement(with(recoverRead, recoverHit, recoverAgain, recoverGone, recoverDone, FreeKeys, recoverGuards, recoverEvents,
	FailedBranches, NoParents, CountBranches), `
select (select coalesce(json_agg(a order by lane, priority), '[]') from (select distinct lane, priority from again) a),
	coalesce((select max(id) from page), @after), (select count(*) from page),
	(select count(*) from again), (select coalesce(json_agg(`+EndJSON("g.ends", "g.why", "g.error", "g.class")+` order by g.id), '[]') from gone g),
	(select count(*) from page where pod = any(@pods::uuid[])) - (select count(*) from hit), `+LinesOf("hit"))

const (
	// recoverRead reads a page of live without locks. Plan: live_pkey, stops at the limit.
	recoverRead = `page as materialized (
	select l.id, l.pod from trapeze.live l where l.id > @after order by l.id limit @limit
)`

	// recoverHit locks the rows of the page CTE that belong to closed pods. A job without its own crash limit uses the limit of its kind. A
	// job that was claimed ahead of time may not have started, so its crash does not count unless the limit is one. After that first claim,
	// the job is not claimed ahead of time again. Plan: live_pkey, jobs_pkey, pods_pkey, kinds_pkey, one row each.
	recoverHit = `hit as materialized (
	select l.id, l.crashes + (l.started_at is not null or m.crashes = 1)::int as crashes, m.crashes as max_crashes, l.cancel_requested, l.pod, o.name,
		l.kind, l.subject, l.key
	from page p
	join trapeze.live l on l.id = any(array[p.id])
	join trapeze.jobs j on j.id = p.id
	join trapeze.pods o on o.id = p.pod
	left join trapeze.kinds k on k.kind = l.kind
	cross join lateral (select coalesce(j.max_crashes, k.max_crashes, @max_crashes) as crashes) m
	where p.pod = any(@pods::uuid[]) and l.pod = any(@pods::uuid[]) and o.closed_at is not null
	order by p.id for update of l skip locked
)`

	// recoverAgain makes the jobs in the hit CTE pending again if they can be retried. Plan: live_pkey.
	recoverAgain = `again as (
	update trapeze.live l set state = 'pending', pod = null, crashes = h.crashes, attempt = l.attempt - 1,
		isolated = h.crashes >= least(2, h.max_crashes - 1), ready_at = 'epoch', event_no = l.event_no + 1
	from hit h where l.id = any(array[h.id]) and not h.cancel_requested and h.crashes < h.max_crashes
	returning l.id, l.fence, l.event_no, h.pod, h.name, l.crashes, l.claim_xid, l.lane, l.priority
)`

	// recoverGone and recoverDone end the remaining jobs in the hit CTE. Plan: live_pkey; an insert.
	recoverGone = `gone as (
	delete from trapeze.live l using hit h
	where l.id = any(array[h.id]) and (h.cancel_requested or h.crashes >= h.max_crashes)
	returning l.*, h.crashes as crashes_now, h.name as pod_name,
		case when h.cancel_requested then 'cancelled' else 'failed' end as ends,
		case when h.cancel_requested then 'cancelled' else 'crashed' end as why,
		'the pod ' || h.name || ' that ran it died or lost its lease' as error,
		case when not h.cancel_requested then 'crash_limit' end as class
)`
	recoverDone = `ended as (
	insert into trapeze.done (id, state, outcome, reason, error, error_class, fence, pod, event_no, epoch, attempt, crashes, priority,
		lane, started_at, claim_xid)
	select id, ends, 'error', why, error, class, fence, pod, event_no + 1, epoch, attempt,
		crashes_now, priority, lane, started_at, claim_xid
	from gone
)`

	// recoverGuards frees the guards of the jobs in the gone CTE. A job in the again CTE keeps its guard, although another job may have to precede
	// it now. Plan: subjects_by_subject.
	recoverGuards = `freed_guards as (
	update trapeze.subjects c set state = 'free' from gone g
	where g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'held'
)`

	// recoverEvents writes the events for the jobs in the again and gone CTEs.
	recoverEvents = `events as (
	insert into trapeze.job_events (job, event_no, claim_xid, fence, pod, from_state, to_state, event, level, fields)
	select id, event_no, claim_xid, fence, pod, 'running', 'pending', 'job.recovered', 'warn',
		json_build_object('reason', 'lease_lapsed', 'pod', name, 'pod_id', pod, 'crashes', crashes) from again
	union all
	select id, event_no + 1, claim_xid, fence, pod, 'running', ends, 'job.' || ends, 'error',
		json_build_object('reason', why, 'pod', pod_name, 'pod_id', pod, 'crashes', crashes_now, 'error_class', class) from gone
)`
)

// RecoveredPage is the result of recovering one page.
type RecoveredPage struct {
	// Ranks contains the lanes and priorities of the jobs that are pending again. Their ready time is the epoch, which the zero time precedes.
	Ranks []AdmittedJob

	Last    int64     // the last id that was read
	Seen    int       // number of rows that were read; fewer than the limit at the end of the table
	Pending int       // number of jobs that are pending again
	Ended   []job.End // jobs that failed as crashed or were cancelled
	Passed  int       // number of jobs that were skipped because their rows are locked; recover the page again
	Lines   []Line    // the lines of the recovered jobs; call [Store.AdmitNext] for them
}

// RecoverPage recovers closed pods' jobs among the next limit rows of live after the given id. maxCrashes applies to jobs for which neither
// the job nor its kind sets a limit. Several pods can run it concurrently.
func RecoverPage(ctx context.Context, s *Store, podIDs []string, after int64, limit, maxCrashes int) (RecoveredPage, error) {
	page, err := run(ctx, s, pgx.RowToStructByPos[RecoveredPage], recoverPageSQL,
		args{{"pods", podIDs}, {"after", after}, {"limit", limit}, {"max_crashes", maxCrashes}})
	if err != nil {
		return RecoveredPage{}, fmt.Errorf("recover: %w", err)
	}
	return page[0], nil
}
