package store

import (
	"strings"

	"github.com/trapeze-run/trapeze/job"
)

// These statements handle a single plain job. They are used on a pod that is not busy, and in commits that include a handler's writes. They
// take plain values instead of arrays, and contain only the CTEs that a plain job needs. They write the same rows as the statements for
// many jobs, but take only 80 µs on the server instead of the 190 µs of [finishSQL]. In cases that they cannot handle they write nothing,
// and the statement for many jobs runs instead.
//
// finishOneSQL ends a job without a subject or key that succeeded, and inserts its next step, which must not need approval. It writes nothing if a cancel
// request was committed first, or if the row is locked. Plan: Index Scan on live_pkey, one row; one probe each of pods, lanes, kinds and live_for_claim; inserts.
//
// endOneSQL is like finishOneSQL for a job without a next step. Plan: as finishOneSQL.
//
// enqueueOneSQL inserts a job, and starts it on insert where possible. It writes nothing if the lane requires approval. Plan: one probe
// each of lanes, kinds, pods and live_for_claim; inserts.
//
// enqueueOneFreeSQL inserts a pending job in one of the host application's transactions. It writes nothing if the lane requires approval,
// or if the id is in use. It reads only one row each of lanes and kinds, so its plan is good under any planner settings. Plan: one probe of
// each; inserts.
var (
	finishOneSQL = newStatement(with(oneGone, oneNext(goesAhead, `select id as parent_id, @new_lane::text as lane, @ahead::smallint as ahead,
			(select n.start_within_s from trapeze.lanes n where n.name = @new_lane::text) as lane_s from gone`),
		oneJob, onePipeline, oneLive, oneDone, FreeKeys, oneEvents(oneEndEvent, oneNextEvents)),
		`select g.id, 'succeeded', n.runs, null::bigint, null::text, null::text, null::int, null::timestamptz from gone g cross join next n`)
	endOneSQL     = newStatement(with(oneGone, oneDone, FreeKeys, oneEvents(oneEndEvent)), `select id, 'succeeded', false, null::bigint, null::text, null::text, null::int, null::timestamptz from gone`)
	enqueueOneSQL = newStatement(with(oneNext(goesAheadInRanges, "select *, @ahead::smallint as ahead from ("+oneSubmission+") s"), oneJob, onePipeline,
		oneLive, oneEvents(oneNextEvents)), `select @new_id::bigint, case when runs then 'running' else 'pending' end, `+tookMicros+` from next`)
	enqueueOneFreeSQL = newStatement(with("asked as (\n\t"+oneSubmission+"\n)",
		"next as (\n\t"+oneInsert+"asked\n\ton conflict (id) do nothing\n\treturning parent_id, lane, false as runs, (select lane_s from asked) as lane_s\n)", onePipeline, oneLive, oneEvents(oneNextEvents)),
		`select @new_id::bigint, 'pending', `+tookMicros+` from next`)
)

const (
	// oneGone deletes the claim's row. The subquery skips the row if it is locked. Plan: live_pkey, twice.
	oneGone = `gone as (
	delete from trapeze.live where id = (select id from trapeze.live
		where id = @id::bigint and fence = @fence::bigint and pod = @pod::uuid and not cancel_requested and subject = '' and key is null for update skip locked)
	returning id, fence, event_no + 1 as event_no, epoch, attempt, crashes, priority, lane, coalesce(started_at, @started::timestamptz) as started_at, claim_xid, unique_while
)`

	// oneSubmission selects a submitted or scheduled job, unless it needs approval, with its lane's limit of the time until the start. One probe reads
	// both: lane_s is -1 if the job needs approval. The lane exists, because a job for a lane that is still to be made has a delay. Plan: one probe of lanes_pkey.
	oneSubmission = `select s.* from (select @new_parent_id::bigint as parent_id, @new_lane::text as lane, (
			select case when coalesce(@new_needs_approval::boolean, n.requires_approval) then -1 else n.start_within_s end
			from trapeze.lanes n where n.name = @new_lane::text) as lane_s offset 0) s
		where @new_id::bigint is not null and s.lane_s is distinct from -1`

	oneJob    = "new_job as (\n\t" + oneInsert + "next\n)"
	oneInsert = `insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id, parent_id, step, planned, max_attempts, max_crashes, submitter, xid,
		impaired, traceparent)
	select @new_id::bigint, @new_kind, lane, '', @new_args::text::json, @new_pipeline_id::bigint, parent_id, @new_step::int, @new_planned::text::json, @new_max_attempts::int,
		@new_max_crashes::int, @new_submitter, pg_current_xact_id(), @new_impaired::boolean, @new_traceparent from `
	onePipeline = `new_pipeline as (
	insert into trapeze.pipelines (id, name) select @new_pipeline_id::bigint, @new_pipeline::text from next where @new_pipeline::text is not null
	on conflict (id) do nothing
)`
	oneLive = `new_live as (
	insert into trapeze.live (id, ready_at, claimed_at, started_at, fence, pod, event_no, attempt, priority, state, lane, kind, subject, claim_xid, start_by)
	select @new_id::bigint, now(), case when runs then now() end, case when runs then now() end, runs::int, case when runs then @pod::uuid end,
		1 + runs::int, runs::int, @new_priority::smallint, case when runs then 'running' else 'pending' end, lane, @new_kind, '',
		case when runs then pg_current_xact_id() end, now() + least((select k.start_within_ms from trapeze.kinds k where k.kind = @new_kind),
		lane_s * 1000::bigint) * interval '1 millisecond'
	from next
)`

	oneDone = `ended as (
	insert into trapeze.done (id, state, outcome, reason, result, fence, pod, event_no, epoch, attempt, crashes, priority, lane, started_at,
		xid, claim_xid)
	select id, 'succeeded', 'ok', @reason, @result::text::json, fence, @pod::uuid, event_no, epoch, attempt, crashes, priority, lane, started_at,
		pg_current_xact_id(), claim_xid from gone
)`
	oneEndEvent   = `select array[id], array[event_no], array[fence], @pod::uuid, 'running', 'succeeded', 'job.succeeded', 'system', null::json from gone`
	oneNextEvents = `select array[@new_id::bigint], array[1], null::bigint[], null::uuid, '', 'pending', 'job.enqueued', @new_actor, null::json from next
	union all
	select array[@new_id::bigint], array[2], array[1::bigint], @pod::uuid, 'pending', 'running', 'job.claimed', 'system', '{"path":"fast"}'
	from next where runs`
)

// oneNext selects the new job from a row with the columns parent_id, lane and ahead. It decides whether to start the job on insert, as
// [mayStart] does for jobs without a subject. Plan: one probe each of pods and live_for_claim.
func oneNext(ahead, from string) string {
	return `next as materialized (
	select w.*, @new_starts::boolean and exists (select from trapeze.pods where id = @pod::uuid and ` + stillOpen + `)
		and not exists (` + ahead + `) as runs
	from (` + from + `) w
)`
}

func oneEvents(list ...string) string {
	return `events as (
	insert into trapeze.job_events (jobs, event_nos, fences, pod, from_state, to_state, event, actor, fields)
	` + strings.Join(list, "\n\tunion all\n\t") + `
)`
}

// plain reports whether a new job can be inserted by the statements for one job, which do not support subjects, keys of any sort, delays, approval or
// fan-outs.
func (n *NewJob) plain() bool {
	return n.Subject == "" && n.Key == "" && n.UniqueKey == nil && n.UniqueWhile == nil && n.DelayMillis == 0 && n.StartMillis == 0 && !n.Unlimited && !n.NeedsApproval && n.Group == nil && n.No == nil
}

// finishOneOf returns the statement that ends a single claim, with its arguments, or nil if the statement for many claims is needed.
func finishOneOf(podID string, list []Ending) (*statement, args) {
	if len(list) != 1 {
		return nil, nil
	}
	e := &list[0]
	if e.State != job.Succeeded || e.Outcome != job.OK || e.Error != "" || e.Group != nil || e.InLine || e.Next != nil && !(e.Next.plain() && e.Next.Approved) {
		return nil, nil
	}
	sql, by := endOneSQL, args{{"pod", podID}}
	if e.Next != nil {
		sql = finishOneSQL
		by = append(append(by, newJobs.values(sql, e.Next)...), args{{"ahead", int4(-e.Next.Priority - 1)}}...)
	}
	return sql, append(by, endings.values(sql, e)...)
}
