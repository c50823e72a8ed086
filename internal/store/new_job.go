package store

import (
	"encoding/json"
	"fmt"
	"math"
)

// NewJob is a job to be inserted.
type NewJob struct {
	ID         int64
	Kind       string
	Lane       string
	Subject    string
	Key        string // empty if there is none
	Args       json.RawMessage
	PipelineID int64   // 0 means the same value as ID
	Pipeline   *string // the pipeline's name if a row must be inserted for it; nil if the row exists or none is needed
	ParentID   *int64  // nil for a submitted job
	Step       int
	Branch
	Planned     json.RawMessage // nil if no step follows
	MaxAttempts *int            // nil means the kind's setting
	MaxCrashes  *int
	Submitter   string
	Actor       string // actor of the job.enqueued event
	UniqueKey   *string
	UniqueWhile *string // pending or active
	Replace     bool    // the job that waits with the unique key takes the args; see [TakeKey]
	// DebounceMillis is the delay of the job if it is positive. A job that is replaced becomes due after this delay, too, but at the latest
	// DebounceMaxMillis after its first submission.
	DebounceMillis, DebounceMaxMillis int64
	// ThrottleMillis is the least time from the start of the last throttled job of the unique key to that of this job. [TakeKey] sets the delay.
	ThrottleMillis int64
	Trace          string // trace context of the submission, as a traceparent; empty if there is none
	Ordered        bool   // the job keeps its subject while it waits for a retry
	Priority       int
	DelayMillis    int64 // if positive, the job is parked for this long
	StartMillis    int64 // if positive, the job fails if it does not start within this time
	Unlimited      bool  // the start limits of its kind and lane do not apply
	// NeedsApproval means that the job must be approved before it can run. The job's lane can also require approval.
	NeedsApproval bool
	// Approved exempts the job from its lane's approval rule. It is set for jobs of a schedule whose creator had permission to approve, for
	// steps planned when their pipeline was submitted, and for steps that stay in their predecessor's lane.
	Approved bool
	// Starts requests that this pod start the job on insert, if no job is ahead of it in its lane and its subject is free.
	Starts bool
}

func (n *NewJob) pipeline() int64 {
	if n.PipelineID == 0 {
		return n.ID
	}
	return n.PipelineID
}

func (n *NewJob) actor() string {
	if n.Actor == "" {
		return "system"
	}
	return n.Actor
}

// Branch is a job's position in a fan-out. The zero value means that the job is in its pipeline's main sequence.
type Branch struct {
	Group    *int64 // id of the job that waits for the branch; nil in the main sequence
	No       *int32 // branch number
	Impaired bool   // an earlier job of the branch failed without ending the branch
}

// Place reports where a new job was inserted.
type Place string

const (
	PlacedRunning Place = "running" // started on insert by this pod, with fence 1
	PlacedPending Place = "pending"
	PlacedParked  Place = "parked"
	PlacedWaiting Place = "waiting" // parked until its subject is free; the caller must call [Store.AdmitNext]
	PlacedKeyed   Place = "keyed"   // parked until there is a place for its key; the caller must call [Store.AdmitNext]
	// PlacedAwaiting means that the job is parked until it is approved.
	PlacedAwaiting Place = "awaiting_approval"
)

// placeParts returns the CTEs that all statements that insert jobs share. They read the input_jobs CTE. They insert each of its rows into
// jobs and into either live (pending or started on insert) or parked, and write its events. The order is input_jobs → may → guarded →
// placed, and the other CTEs read placed. ahead is the condition that selects the jobs ahead of a job in its lane.
//
// A row becomes pending only if its subject is free: either its parent hands over the guard, or the row takes it. Otherwise, the row is
// parked until it gets the guard. A row does not take the guard either if a parked job of the subject comes first. If two
// jobs are equally urgent, the next step of a job comes first.
//
// A row with a key becomes pending only if its parent hands over its places. Otherwise, it is parked, and [Store.AdmitNext] gives it its places.
//
// A row that may be pending starts on insert only if all of these conditions hold:
//   - It requests to start on insert.
//   - Its pod's row is open, because recovery searches for a closed pod's jobs only for a limited time.
//   - No pending job in its lane has a rank, which is the negated priority, up to its ahead value. The search ends at the first pending row
//     in live_for_claim.
//
// A row that needs approval is always parked; its run_after is the time at which it would have become due.
func placeParts(ahead string) string {
	return list("may as materialized (\n\tselect "+mayStart(ahead)+"\n)", takeGuards("may"), placePlaced, placeRows)
}

// placeWaiting is used instead of placeParts in a transaction of the host application. Such a transaction takes no guards, because all
// other submissions for the subject would then wait for it. A job with a subject or key is parked as due, and is promoted after the commit.
const placeWaiting = `placed as materialized (
	select w.*, case when w.approval then 'awaiting_approval' when w.delay_ms > 0 or w.subject <> '' or w.key is not null then 'parked' else 'pending' end as place,
		` + startBy + ` as start_by
	from (select * from input_jobs offset 0) w
), ` + placeRows

// mayStart returns the query that decides, for each row of the input_jobs CTE, whether it may be pending and whether it can start on insert.
// Plan: one probe each of subjects_one_guard and parked_for_subject for each row with a subject, and of pods and live_for_claim for
// each row that requests to start.
func mayStart(ahead string) string {
	return `w.*, w.delay_ms = 0 and not w.approval and (w.key is null or w.lane_place is not null) and (w.subject = ''
		or (w.handed or ` + guardFree + `) and ` + noneWaits("(-p.priority) <= w.ahead") + `
			and not ` + duePrecedes("(-d.priority) <= w.ahead") + `) as free,
	w.starts and exists (select from trapeze.pods where id = w.pod and ` + stillOpen + `)
		and not exists (` + ahead + `) as first
	from (select i.*, now() as run_after from input_jobs i offset 0) w`
}

// startBy is the latest time of the first start of the job in row w: the earliest of the job's own limit, which counts from the submission, and those
// of its kind and lane, which count from the time at which the job is due. Plan: one probe each of kinds and lanes_pkey; lane_templates if the lane does
// not exist.
const startBy = `now() + least(w.start_ms, case when w.unlimited is null then greatest(w.delay_ms, w.debounce_max_ms)
		+ (select s.within from trapeze.start_within(w.kind, w.lane) s(within)) end) * interval '1 millisecond'`

const (
	// placePlaced decides where to insert each row of the may CTE.
	placePlaced = `placed as materialized (
	select w.*, case when w.approval then 'awaiting_approval' when w.delay_ms > 0 then 'parked'
		when w.key is not null and w.lane_place is null then 'keyed' when not (w.free and (w.subject = '' or w.handed or w.id in (select job_id from guarded))) then 'waiting'
		when w.first then 'running' else 'pending' end as place,
		` + startBy + ` as start_by
	from may w
)`

	// placeRows inserts the placed CTE's rows. Plan: inserts.
	placeRows = placeJobs + ", " + placePipelines + ", " + placeLive + ", " + placeParked + ", " + placeEvents

	placeJobs = `new_jobs as (
	insert into trapeze.jobs (id, kind, lane, subject, key, args, pipeline_id, parent_id, step, planned, max_attempts,
		max_crashes, submitter, unique_key, xid, group_id, child_no, impaired, ordered, traceparent)
	select id, kind, lane, subject, key, args::json, pipeline_id, parent_id, step, planned::json, max_attempts,
		max_crashes, submitter, unique_key, pg_current_xact_id(), group_id, child_no, impaired, coalesce(ordered, false), traceparent from placed
)`
	placePipelines = `new_pipelines as (
	insert into trapeze.pipelines (id, name) select pipeline_id, pipeline from placed where pipeline is not null
	on conflict (id) do nothing
)`
	placeLive = `new_live as (
	insert into trapeze.live (id, ready_at, claimed_at, started_at, fence, pod, event_no, attempt, priority, state,
		unique_while, lane, kind, subject, key, lane_place, kind_place, claim_xid, start_by)
	select id, now(), born_at, born_at, born, case when born = 1 then pod end, 1 + born, born, priority, place,
		case when born = 0 or unique_while = 'active' then unique_while end, lane, kind, subject, key, lane_place, kind_place,
		case when born = 1 then pg_current_xact_id() end, start_by
	from (select p.*, case place when 'running' then 1 else 0 end as born,
			case place when 'running' then now() end as born_at
		from placed p where place in ('pending', 'running')) p
)`
	placeParked = `new_parked as (
	insert into trapeze.parked (id, why, run_after, event_no, priority, unique_while, lane, kind, subject, key, start_by)
	select id, case place when 'awaiting_approval' then 'approval' when 'waiting' then 'subject' when 'keyed' then 'key' else 'scheduled' end,
		now() + delay_ms * interval '1 millisecond', 1, priority, unique_while, lane, kind, subject, key, start_by
	from placed where place in ('parked', 'awaiting_approval', 'waiting', 'keyed')
)`
	placeEvents = `new_events as (
	insert into trapeze.job_events (jobs, event_nos, fences, pod, from_state, to_state, event, actor, fields)
	select array_agg(id), array_agg(1), null, null, '', case when approval then 'awaiting_approval' else 'pending' end,
		'job.enqueued', actor, null
	from placed group by actor, approval
	union all
	select array_agg(id), array_agg(2), array_agg(1::bigint), pod, 'pending', 'running', 'job.claimed', 'system',
		'{"path":"fast"}'::json
	from placed where place = 'running' group by pod
)`
)

// goesAhead selects the jobs ahead of a next step in its lane. goesAheadInRanges selects those ahead of a submission, and skips what lies before
// the lane's marks (see [readRanges]).
const (
	goesAhead = `select from trapeze.live l
			where l.lane = w.lane and (-l.priority) <= w.ahead and l.state = 'pending'`
	goesAheadInRanges = `select from generate_series(1, cardinality(@from_ranks::int[])) as i cross join lateral (select from trapeze.live l
			where l.lane = w.lane and ((-l.priority), l.ready_at) >= ((@from_ranks::int[])[i], (@from_times::timestamptz[])[i])
				and (-l.priority) <= least((@to_ranks::int[])[i], w.ahead) and l.state = 'pending' limit 1) l`
)

// needsApproval is true if the job in row w needs approval. It reads the lane's current row, because this process's copy may be outdated, or the template
// of a lane that is still to be made. Plan: one probe of lanes_pkey for each job that is not exempt; lane_templates if the lane does not exist.
const needsApproval = `coalesce(w.needs_approval, (select a.requires_approval from trapeze.lanes a where a.name = w.lane),
		(select a.requires_approval from trapeze.lane_rules(w.lane) a), false)`

// newJobs are the columns of new jobs.
var newJobs = columns[*NewJob]{"new_", []columnOf[*NewJob]{
	column("id", "bigint", func(n *NewJob) int64 { return n.ID }),
	column("kind", "text", func(n *NewJob) string { return n.Kind }),
	column("lane", "text", func(n *NewJob) string { return n.Lane }),
	column("subject", "text", func(n *NewJob) string { return n.Subject }),
	rare("key", "text", func(n *NewJob) *string { return Some(n.Key) }),
	column("args", "text", func(n *NewJob) string { return string(n.Args) }),
	column("pipeline_id", "bigint", (*NewJob).pipeline),
	column("parent_id", "bigint", func(n *NewJob) *int64 { return n.ParentID }),
	column("step", "int", func(n *NewJob) int32 { return int4(n.Step) }),
	column("planned", "text", func(n *NewJob) *string { return text(n.Planned) }),
	column("max_attempts", "int", func(n *NewJob) *int32 { return narrow(n.MaxAttempts) }),
	column("max_crashes", "int", func(n *NewJob) *int32 { return narrow(n.MaxCrashes) }),
	column("submitter", "text", func(n *NewJob) string { return n.Submitter }),
	column("actor", "text", (*NewJob).actor),
	column("unique_key", "text", func(n *NewJob) *string { return n.UniqueKey }),
	column("unique_while", "text", func(n *NewJob) *string { return n.UniqueWhile }),
	column("priority", "int", func(n *NewJob) int32 { return int4(n.Priority) }),
	column("delay_ms", "bigint", func(n *NewJob) int64 { return n.DelayMillis }),
	column("starts", "boolean", func(n *NewJob) bool { return n.Starts }),
	column("pipeline", "text", func(n *NewJob) *string { return n.Pipeline }),
	column("group_id", "bigint", func(n *NewJob) *int64 { return n.Group }),
	column("child_no", "int", func(n *NewJob) *int32 { return n.No }),
	column("impaired", "boolean", func(n *NewJob) bool { return n.Impaired }),
	rare("traceparent", "text", func(n *NewJob) *string { return Some(n.Trace) }),
	rare("start_ms", "bigint", func(n *NewJob) *int64 { return Some(n.StartMillis) }),
	rare("unlimited", "boolean", func(n *NewJob) *bool { return Some(n.Unlimited) }),
	rare("debounce_max_ms", "bigint", func(n *NewJob) *int64 { return Some(n.DebounceMaxMillis) }),
	rare("ordered", "boolean", func(n *NewJob) *bool { return Some(n.Ordered) }),
	column("needs_approval", "boolean", (*NewJob).approval),
}}

var yes, no = true, false

// approval reports whether the job needs approval; nil means that the lane decides.
func (n *NewJob) approval() *bool {
	switch {
	case n.NeedsApproval:
		return &yes
	case n.Approved:
		return &no
	}
	return nil
}

func text(raw json.RawMessage) *string {
	if raw == nil {
		return nil
	}
	s := string(raw)
	return &s
}

// Some returns a pointer to v, or nil if v is the zero value. A nil costs nothing and becomes null in PostgreSQL.
func Some[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	kept := v // returning &v would cost an allocation for the zero value too
	return &kept
}

// Texts converts a list to a slice of strings, which is nil if the list is empty. As with [Some], nil becomes null in PostgreSQL.
func Texts[S ~string](list []S) (texts []string) {
	for _, one := range list {
		texts = append(texts, string(one))
	}
	return texts
}

func narrow(n *int) *int32 {
	if n == nil {
		return nil
	}
	v := int4(*n)
	return &v
}

// int4 converts n to PostgreSQL's int, limiting it to that type's range.
func int4(n int) int32 { return int32(max(math.MinInt32, min(n, math.MaxInt32))) }

func placeOf(s string) (Place, error) {
	switch p := Place(s); p {
	case PlacedRunning, PlacedPending, PlacedParked, PlacedWaiting, PlacedKeyed, PlacedAwaiting:
		return p, nil
	}
	return "", fmt.Errorf("unknown place %q", s)
}
