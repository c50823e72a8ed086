package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// parkSQL ends a claim and moves the job to parked until it becomes due. A retry uses up the attempt. A snooze gives it back, and is
// counted in job_progress. The job's subject becomes free, unless the job is ordered. A job whose cancel request was committed does not match, because cancelling takes precedence over retrying.
// Plan: Index Scan on live_pkey, subjects_by_subject and jobs_pkey, one row each; a retry does not touch job_progress.
var parkSQL = newStatement(`
with gone as (
	delete from trapeze.live where id = @id and fence = @fence and pod = @pod and not cancel_requested
	returning *
), parked as (
	insert into trapeze.parked (id, why, run_after, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated,
		unique_while, lane, kind, subject, key)
	select id, @why, now() + @wait::bigint * interval '1 millisecond', coalesce(started_at, @started::timestamptz), fence, event_no + 1, epoch,
		case when @why = 'retry' then attempt else attempt - 1 end, crashes, priority, isolated, unique_while, lane, kind, subject, key
	from gone
	returning run_after
), snoozes as (
	insert into trapeze.job_progress (id, snoozes) select id, @times::int from gone where @times::int > 0
	on conflict (id) do update set snoozes = excluded.snoozes
), freed_guard as (
	update trapeze.subjects c set state = case when g.ordered then 'held' else 'free' end, previous_job = case when g.ordered then g.id else c.previous_job end
	from (select id, kind, subject, coalesce((select j.ordered from trapeze.jobs j where j.id = w.id), false) as ordered from gone w where subject <> '' offset 0) g
	where c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'held'
), event as (
	insert into trapeze.job_events (job, event_no, claim_xid, fence, pod, from_state, to_state, event, actor, level, message,
		fields)
	select id, event_no + 1, claim_xid, fence, pod, 'running', 'pending', case when @why = 'retry' then 'job.retried' else 'job.snoozed' end,
		'handler', 'warn', @message, case when @why = 'retry' then json_build_object('attempt', attempt, 'delay_ms', @wait::bigint, 'error_class', @class::text, 'error_code', @code::text)
		else json_build_object('count', @times::int, 'delay_ms', @wait::bigint) end from gone
)
select run_after from parked`)

// Retry describes why a job is retried.
type Retry struct {
	Started time.Time // start time of the handler, for a job that was claimed ahead of time; zero if the row already contains it
	Message string    // the handler's error
	Class   job.ErrorClass
	Code    string // empty if there is none
}

// Park ends a claim and makes the job wait before its next attempt. It returns the time at which the job becomes due. It returns
// [job.ErrLeaseLost] if the lease was lost or a cancel request was committed first; in the latter case, the caller must finish the job.
func (s *Store) Park(ctx context.Context, l job.Lease, wait time.Duration, why Retry) (time.Time, error) {
	return park(ctx, s, l, "retry", 0, wait, why)
}

// Snooze ends a claim because its handler asked to be called later. It spends no attempt. times is the number of times the job has been
// snoozed, including this one. The class and code in why are ignored. Snooze returns the same results as [Store.Park].
func (s *Store) Snooze(ctx context.Context, l job.Lease, times int, wait time.Duration, why Retry) (time.Time, error) {
	return park(ctx, s, l, "snooze", times, wait, why)
}

func park(ctx context.Context, s *Store, l job.Lease, place string, times int, wait time.Duration, why Retry) (time.Time, error) {
	due, err := run(ctx, s, pgx.RowTo[time.Time], parkSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"why", place}, {"started", Some(why.Started)}, {"wait", wait.Milliseconds()}, {"message", why.Message}, {"times", times}, {"class", Some(string(why.Class))}, {"code", Some(why.Code)}})
	if err != nil {
		return time.Time{}, fmt.Errorf("park job %d: %w", l.JobID, err)
	}
	if len(due) == 0 {
		return time.Time{}, fmt.Errorf("park job %d: %w", l.JobID, job.ErrLeaseLost)
	}
	return due[0], nil
}

// promoteSQL makes due parked jobs pending, in the order in which they became due. Their ready_at is set to their due time, so that they keep
// their position even if they are promoted late. A job with a key stays parked until it gets a place. An ordered job
// may already hold its subject. A job whose subject is taken, or has a parked job that comes first, stays parked with the reason
// subject; its row is replaced, so that an admission that has skipped the locked row finds the new one. Plan: Index Scan on
// parked_for_promotion that stops at the limit; for jobs with a subject, one probe each of subjects_one_guard and parked_for_subject; one of lanes_pkey
// for each lane, and of lane_templates for each lane to be made.
var promoteSQL = newStatement(`
with due as materialized (
	select p.id, p.kind, p.subject, p.key, p.priority, p.run_after, p.lane from trapeze.parked p
	where p.why in ('scheduled', 'retry', 'snooze') and p.run_after <= now()
	order by p.run_after, p.id limit @limit for update skip locked
), `, MakeLanes("select distinct d.lane from due d"), `, may as materialized (
	select w.*, w.key is null and (w.subject = '' or w.holds or `, guardFree, ` and
		`, noneWaits("((-p.priority), p.run_after, p.id) < ((-w.priority), w.run_after, w.id)"), `) as free
	from (select d.*, `, holdsGuard("d"), ` as holds from due d offset 0) w
), `, takeGuards("may"), `, moved as (
	delete from trapeze.parked p using may d where p.id = d.id
	returning p.*, p.key is null and (p.subject = '' or d.holds or p.id in (select job_id from guarded)) as admitted
), placed as (
	insert into trapeze.live (ready_at, state, `, ParkedColumns, `)
	select run_after, 'pending', id, started_at, fence, event_no + 1, epoch, attempt, crashes, priority, isolated, unique_while, lane, kind, subject, key, start_by
	from moved where admitted
), waits as (
	insert into trapeze.parked (why, run_after, `, ParkedColumns, `)
	select case when key is null then 'subject' else 'key' end, run_after, id, started_at, fence, event_no + 1, epoch, attempt, crashes, priority, isolated,
		unique_while, lane, kind, subject, key, start_by
	from moved where not admitted
), events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event)
	select id, event_no + 1, fence, 'pending', 'pending', 'job.promoted' from moved
)
select admitted, subject, coalesce(key, ''), kind, lane, priority, run_after from moved`)

// Promote reads at most limit due parked jobs, and returns those that are now pending. It also returns the lines in which the others now wait; call
// [Store.AdmitNext] for them.
func (s *Store) Promote(ctx context.Context, limit int) (pending []AdmittedJob, waiting []Line, err error) {
	type row struct {
		Admitted     bool
		Subject, Key string
		AdmittedJob
	}
	moved, err := run(ctx, s, pgx.RowToStructByPos[row], promoteSQL, args{{"limit", limit}})
	if err != nil {
		return nil, nil, fmt.Errorf("promote: %w", err)
	}
	for _, r := range moved {
		if r.Admitted {
			pending = append(pending, r.AdmittedJob)
		} else { // while it was due, it preceded other jobs of its subject
			waiting = append(waiting, Lines(r.Kind, r.Subject, r.Key)...)
		}
	}
	return pending, waiting, nil
}

// handBackSQL returns jobs to their lanes. It spends no attempt and keeps the fence; the next claim sets a new one. A job with a
// subject keeps the subject's guard. It skips a job whose
// cancel request was committed. A pod that has lost a lease holds an old fence, which matches no row. Plan: Index Scan on live_pkey; a HOT
// update, because the statement sets no indexed column.
var handBackSQL = newStatement(`
with mine as materialized (
	select l.id from unnest(@ids::bigint[], @fences::bigint[]) as w(id, fence)
	join trapeze.live l on l.id = any(array[w.id])
	where l.fence = w.fence and l.pod = @pod and not l.cancel_requested
	order by w.id for update of l
), back as (
	update trapeze.live l set state = 'pending', pod = null, attempt = l.attempt - 1, event_no = l.event_no + 1
	from mine m where l.id = any(array[m.id])
	returning l.id, l.fence, l.event_no, l.claim_xid
), events as (
	insert into trapeze.job_events (job, event_no, claim_xid, fence, pod, from_state, to_state, event, message)
	select id, event_no, claim_xid, fence, @pod, 'running', 'pending', 'job.handed_back', @message from back
)
select id from back`)

// HandBack returns claims to their lanes without spending an attempt, and reports which ones it returned. For each of the others, either
// the pod no longer holds the claim or a cancel request was committed.
func (s *Store) HandBack(ctx context.Context, podID string, claims []job.Lease, why string) (map[int64]bool, error) {
	ids, fences := split(claims)
	found, err := run(ctx, s, pgx.RowTo[int64], handBackSQL, args{{"pod", podID}, {"message", why}, {"ids", ids}, {"fences", fences}})
	if err != nil {
		return nil, fmt.Errorf("hand back: %w", err)
	}
	return set(found), nil
}

// heldSQL lists the claims that the table assigns to the given pods. It runs only after a reply was lost, or when remote workers have moved
// to this pod from another one. Plan: a single pass over live by its primary key, regardless of the number of pods; jobs_pkey for their
// claims.
var heldSQL = newStatement(`
select l.pod::text, l.id, l.fence, l.cancel_requested, j.pipeline_id, l.kind, l.lane, l.subject, coalesce(l.key, ''), l.attempt, j.group_id, j.child_no, j.impaired
from trapeze.live l join trapeze.jobs j on j.id = l.id where l.pod = any(@pods::uuid[]) order by l.id`)

// Held is a claim that the table assigns to a pod.
type Held struct {
	Pod                      string
	ID, Fence                int64
	CancelRequested          bool
	PipelineID               int64
	Kind, Lane, Subject, Key string
	Attempt                  int
	Branch
}

// Held lists the claims that the table assigns to the given pods, including claims that the pods' processes do not know about.
func (s *Store) Held(ctx context.Context, podIDs ...string) ([]Held, error) {
	list, err := run(ctx, s, pgx.RowToStructByPos[Held], heldSQL, args{{"pods", podIDs}})
	if err != nil {
		return nil, fmt.Errorf("list the claims of pods %v: %w", podIDs, err)
	}
	return list, nil
}
