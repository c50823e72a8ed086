package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// closeLapsedSQL closes the rows of pods whose lease has ended, or ends later than now + 2 leases because a clock jumped. Leases
// that end at spared or later are left alone: an outage had begun then, and their pods may still be reconnecting.
// skip locked: a heartbeat or another pod is at it. Plan: pods_open; a handful of rows.
var closeLapsedSQL = newStatement(`
with lapsed as materialized (
	select p.boot from trapeze.pods p
	where p.closed_at is null and p.boot <> @boot
		and (p.lease_until < now() or p.lease_until > now() + 2 * @lease::bigint * interval '1 millisecond')
		and (@spared::timestamptz is null or p.lease_until < @spared)
	order by p.boot for update skip locked
), closed as (
	update trapeze.pods p set closed_at = now(), closed = 'lapsed' from lapsed l where p.boot = l.boot
	returning p.boot, p.name, p.lease_until
), events as (
	insert into trapeze.job_events (event_no, boot, event, level, message)
	select row_number() over (order by boot), boot, 'pod.lapsed', 'warn', name from closed
)
select boot::text, name, lease_until from closed`)

// Lapsed is a pod whose row has been closed because its lease ended.
type Lapsed struct {
	Boot       string
	Name       string
	LeaseUntil time.Time
}

// CloseLapsed closes the rows of the other pods whose lease has ended. From then on their heartbeats are refused. Leases that end at
// spared or later are left alone; zero: none is.
func CloseLapsed(ctx context.Context, s *Store, boot string, lease time.Duration, spared time.Time) ([]Lapsed, error) {
	list, err := run(ctx, s, pgx.RowToStructByPos[Lapsed], closeLapsedSQL, args{{"boot", boot}, {"lease", lease.Milliseconds()}, {"spared", Some(spared)}})
	if err != nil {
		return nil, fmt.Errorf("close lapsed pods: %w", err)
	}
	return list, nil
}

var (
	sweepsDueSQL = `select p.boot::text from trapeze.pods p where ` + sweepDue + ` order by p.boot`
	sweptSQL     = newStatement(`update trapeze.pods set swept_at = now() where boot = any(@boots::uuid[])`)
)

// SweepsDue lists the closed pods whose jobs are to be looked for now.
func SweepsDue(ctx context.Context, s *Store) ([]string, error) {
	list, err := Rows(ctx, s, pgx.RowTo[string], sweepsDueSQL)
	if err != nil {
		return nil, fmt.Errorf("list sweeps: %w", err)
	}
	return list, nil
}

// Swept notes that the jobs of closed pods have been looked for.
func Swept(ctx context.Context, s *Store, boots []string) error {
	if _, err := run(ctx, s, pgx.RowTo[int], sweptSQL, args{{"boots", boots}}); err != nil {
		return fmt.Errorf("note sweep: %w", err)
	}
	return nil
}

// recoverPageSQL takes the jobs of closed pods that lie in one page of live back: pending again, ahead of their lane's
// backlog, a crash counted and the attempt given back; or failed when that was one crash too many; or cancelled when that
// was asked for. It needs no slot, no lane and no handler. The fence stays: whatever the lapsed pod still sends matches
// neither pod nor, after the next claim, fence.
//
// A job whose next crash would be its last, and any job with two, is isolated: a pod runs one such at a time, so that the
// one which kills its pods does not convict the others beside it.
// Plan: Index Scan on live_pkey over the page, in id order, so that it costs the same whatever the statistics say.
var recoverPageSQL = newStatement(with(recoverRead, recoverHit, recoverAgain, recoverGone, recoverDone, FreeKeys, recoverRuns, recoverEvents,
	FailedBranches, NoParents, CountBranches), `
select coalesce((select max(id) from page), @after), (select count(*) from page),
	(select count(*) from again), (select coalesce(json_agg(`+EndJSON("g.ends", "g.why", "g.error", "g.class")+` order by g.id), '[]') from gone g),
	(select count(*) from page where pod = any(@boots::uuid[])) - (select count(*) from hit)`)

const (
	// recoverRead reads the page, without locks. Plan: live_pkey, stops at the limit.
	recoverRead = `page as materialized (
	select l.id, l.pod from trapeze.live l where l.id > @after order by l.id limit @limit
)`

	// recoverHit locks the rows of page that closed pods own. The limit of crashes is the job's, or that of its kind. A job that was claimed
	// ahead may not have started, so that its crash does not count, unless the limit is one: it is not claimed ahead again.
	// Plan: live_pkey, jobs_pkey, pods_pkey, kinds_pkey, a row each.
	recoverHit = `hit as materialized (
	select l.id, l.crashes + (l.started_at is not null or m.crashes = 1)::int as crashes, m.crashes as max_crashes, l.cancel_requested, l.pod, o.name
	from page p
	join trapeze.live l on l.id = p.id
	join trapeze.jobs j on j.id = p.id
	join trapeze.pods o on o.boot = p.pod
	left join trapeze.kinds k on k.kind = l.kind
	cross join lateral (select coalesce(j.max_crashes, k.max_crashes, @max_crashes) as crashes) m
	where p.pod = any(@boots::uuid[]) and l.pod = any(@boots::uuid[]) and o.closed_at is not null
	order by l.id for update of l skip locked
)`

	// recoverAgain makes those of hit pending again that may be tried again. Plan: live_pkey.
	recoverAgain = `again as (
	update trapeze.live l set state = 'pending', pod = null, crashes = h.crashes, attempt = l.attempt - 1,
		isolated = h.crashes >= least(2, h.max_crashes - 1), ready_at = 'epoch', event_no = l.event_no + 1
	from hit h where l.id = h.id and not h.cancel_requested and h.crashes < h.max_crashes
	returning l.id, l.fence, l.kind, l.subject, l.event_no, h.pod, h.name, l.crashes, l.claim_xid
)`

	// recoverGone and recoverDone end the others of hit. Plan: live_pkey; an insert.
	recoverGone = `gone as (
	delete from trapeze.live l using hit h
	where l.id = h.id and (h.cancel_requested or h.crashes >= h.max_crashes)
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

	// recoverRuns ends the runs of the subjects of again and gone. Plan: current_runs_of_subject.
	recoverRuns = `over as materialized (
	select id, kind, subject from again where subject <> '' union all select id, kind, subject from gone where subject <> ''
), ended_runs as (
	update trapeze.current_runs c set state = 'ended' from over r
	where c.kind = r.kind and c.subject = r.subject and c.job_id = r.id
)`

	// recoverEvents writes the events of again and gone.
	recoverEvents = `events as (
	insert into trapeze.job_events (job, event_no, claim_xid, fence, boot, from_state, to_state, event, level, fields)
	select id, event_no, claim_xid, fence, pod, 'running', 'pending', 'job.recovered', 'warn',
		json_build_object('reason', 'lease_lapsed', 'pod', name, 'boot', pod, 'crashes', crashes) from again
	union all
	select id, event_no + 1, claim_xid, fence, pod, 'running', ends, 'job.' || ends, 'error',
		json_build_object('reason', why, 'pod', pod_name, 'boot', pod, 'crashes', crashes_now, 'error_class', class) from gone
)`
)

// RecoveredPage is what one page of a recovery did.
type RecoveredPage struct {
	Last    int64     // the last id looked at
	Seen    int       // rows looked at: fewer than the limit means the end of the table
	Pending int       // jobs that are pending again
	Ended   []job.End // of jobs that failed as crashed, or were to be cancelled
	Passed  int       // jobs that were passed by, because somebody holds their row: look again
}

// RecoverPage takes back the jobs of closed pods among the next limit rows of live after the given id. maxCrashes is the
// limit of jobs that have none of their own. Safe to run on several pods at once.
func RecoverPage(ctx context.Context, s *Store, boots []string, after int64, limit, maxCrashes int) (RecoveredPage, error) {
	page, err := run(ctx, s, pgx.RowToStructByPos[RecoveredPage], recoverPageSQL,
		args{{"boots", boots}, {"after", after}, {"limit", limit}, {"max_crashes", maxCrashes}})
	if err != nil {
		return RecoveredPage{}, fmt.Errorf("recover: %w", err)
	}
	return page[0], nil
}
