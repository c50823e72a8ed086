package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Ending is how one claim of a job ends for good, and the step that follows it.
type Ending struct {
	ID      int64
	Fence   int64
	State   job.State // succeeded, failed or cancelled
	Outcome job.Quality
	Reason  job.Reason
	Result  json.RawMessage // nil: none
	Error   string          // empty: none
	Class   job.ErrorClass  // of a job that failed
	Code    string          // empty: none
	Next    *NewJob         // nil: the pipeline ends here; Starts asks for it to be born running
	Branch                  // of the job that ends
	EventNo int             // of a job that waited, as [Store.Waiting] read it; of no meaning otherwise
}

// Ended is what became of an ending that was accepted.
type Ended struct {
	State        job.State // cancelled when a cancel was committed first
	ChildRunning bool      // the next step is ours, with fence 1
	OffBalance   *int64    // the fan-out that its end leaves off balance: see [Store.FanOut]
	Found        bool      // nothing was written now: the claim had ended, by an earlier try or by somebody who spoke for it
	Here         bool      // Found, and it was an earlier try of this pod, whose reply was lost
}

// goneTailSQL is how every end begins. The fence decides first: only rows with this id, fence and pod are locked and
// deleted, and of what is not returned nothing else is written. It has lost its lease, or somebody holds its row at this
// moment, whom the others of the batch must not wait for: [Store.Whereabouts] tells. The DELETE also returns
// cancel_requested: a cancel that was committed before wins. It reads the CTE ends.
const goneTailSQL = `
free as materialized (
	select e.* from ends e join trapeze.live l on l.id = e.id
	where l.fence = e.fence and l.pod = $8::uuid
	for update of l skip locked
), gone as (
	delete from trapeze.live l using free e
	where l.id = e.id
	returning l.id, case when l.cancel_requested then 'cancelled' else e.state end as state,
		case when l.cancel_requested then 'error' else e.outcome end as outcome,
		case when l.cancel_requested then 'cancelled' else e.reason end as reason,
		case when not l.cancel_requested then e.result end as result, e.error,
		case when not l.cancel_requested then e.error_class end as error_class,
		case when not l.cancel_requested then e.error_code end as error_code, l.fence, l.epoch, l.attempt, l.crashes,
		l.priority, l.lane, l.kind, l.subject, l.started_at, l.event_no + 1 as event_no, l.cancel_requested, l.unique_while,
		l.claim_xid`

// endedTailSQL is how every end goes on: its row in done, its unique key, what was to be told to its pod, its event.
const endedTailSQL = `
ended as (
	insert into trapeze.done (id, state, outcome, reason, result, error, error_class, error_code, fence, pod, event_no, epoch,
		attempt, crashes, priority, lane, started_at, xid, claim_xid)
	select id, state, outcome, reason, result::json, error, error_class, error_code, fence, $8::uuid, event_no, epoch, attempt, crashes, priority,
		lane, started_at, pg_current_xact_id(), claim_xid from gone
), ` + freeKeysTailSQL + `, told as (
	delete from trapeze.cancel_requests c using gone g
	where g.cancel_requested and c.pod = $8::uuid and c.job_id = g.id and c.fence = g.fence
), end_events as (
	insert into trapeze.job_events (jobs, event_nos, fences, job, event_no, fence, boot, from_state, to_state, event, level,
		message, fields)
	select array_agg(id), array_agg(event_no), array_agg(fence), null, null, null, $8::uuid, 'running', 'succeeded',
		'job.succeeded', null, null, null from gone where state = 'succeeded' and outcome = 'ok' having count(*) > 0
	union all
	select null, null, null, id, event_no, fence, $8::uuid, 'running', state, 'job.' || state,
		case when state = 'failed' then 'error' when outcome = 'warning' then 'warn' end, left(error, 500),
		case when state = 'failed' then ` + failureFields + ` end
	from gone where state <> 'succeeded' or outcome <> 'ok'
)`

// failureFields are the fields of the event of a failure.
const failureFields = `json_build_object('reason', reason, 'error_class', error_class, 'error_code', error_code)`

// The arrays of ends, and what they are called. The steps that follow come after the pod, $8, and the classes and codes of
// errors, which are null where no job of the batch failed.
const (
	endArrays = `$1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $9::text[],
		$10::text[]`
	endColumns = `id, fence, state, outcome, reason, result, error, error_class, error_code`
	nextArrays = `$11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::bigint[], $18::int[],
		$19::text[], $20::int[], $21::int[], $22::text[], $23::text[], $24::text[], $25::text[], $26::int[], $27::bigint[],
		$28::boolean[], $29::text[], $30::bigint[], $31::int[], $32::boolean[], $33::text[]`
	nextColumns = `next, next_kind, next_lane, next_subject, args, pipeline_id, parent_id, step, planned, max_attempts, max_crashes,
		submitter, actor, unique_key, next_unique_while, next_priority, delay_ms, starts, pipeline, group_id, child_no, impaired, traceparent`
)

// endedRunsTailSQL ends the runs of the subjects of gone.
const endedRunsTailSQL = `ended_runs as (
	update trapeze.current_runs c set state = 'ended'
	from gone g
	where g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'running'
), `

// nextTailSQL goes on from gone with what is needed of the steps that follow, and inserts them, already running and ours where
// they may be; a job that a cancel took has none. Each end and its next step are one row of the arrays, for a join of the two
// would compare each with each. A child that is to run on its parent's own (kind, subject) gets its parent's row of current_runs.
const nextTailSQL = `,
		case when not l.cancel_requested and e.next <> 0 then e.next end as next, e.next_kind, e.next_lane, e.next_subject,
		e.args, e.pipeline_id, e.step, e.planned, e.max_attempts, e.max_crashes, e.submitter, e.actor, e.unique_key,
		e.next_unique_while, e.next_priority, e.delay_ms, e.starts, e.pipeline, e.group_id, e.child_no, e.impaired, e.traceparent
), wish as (
	select next as id, next_kind as kind, next_lane as lane, next_subject as subject, args, pipeline_id, id as parent_id,
		step, planned, max_attempts, max_crashes, submitter, actor, unique_key, next_unique_while as unique_while,
		next_priority as priority, delay_ms, starts, pipeline, group_id, child_no, impaired, traceparent,
		next_subject <> '' and next_kind = kind and next_subject = subject as handed,
		(-next_priority - 1)::smallint as ahead, $8::uuid as boot, false as approval
	from gone where next is not null
), ` + placeSQL + `, handed_over as (
	update trapeze.current_runs c set job_id = p.id, fence = 1
	from placed p
	where p.handed and p.place = 'running'
		and c.kind = p.kind and c.subject = p.subject and c.job_id = p.parent_id and c.state = 'running'
), ended_runs as (
	update trapeze.current_runs c set state = 'ended'
	from gone g
	where g.subject <> '' and g.id not in (select parent_id from placed where handed and place = 'running')
		and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'running'
), `

// endSQL ends jobs that no step follows: most of a drain, for which the inserts of [finishSQL] are a quarter of the cost.
// Plan: Index Scans on live_pkey, current_runs_of_subject; inserts. id, fence and pod alone are compared: a condition on
// state makes the planner choose worse (102 µs a job instead of 15.7).
const endSQL = `
with ends as materialized (
	select * from unnest(` + endArrays + `) as e(` + endColumns + `)
), ` + goneTailSQL + `
), ` + endedRunsTailSQL + endedTailSQL + `
select id, state, false as child_running, null::bigint as due from gone`

// endBranchesSQL is endSQL for jobs of which some are the last of a branch of a fan-out: they are counted.
// Plan: as endSQL; fan_outs_pkey.
const endBranchesSQL = `
with ends as materialized (
	select * from unnest(` + endArrays + `, $11::bigint[], $12::boolean[]) as e(` + endColumns + `, of_group, was_impaired)
), ` + goneTailSQL + `, e.of_group, e.was_impaired
), ` + endedRunsTailSQL + endedTailSQL + `, branches as (
	select of_group, state, was_impaired from gone where of_group is not null
), ` + noParentsTailSQL + countTailSQL + `
select id, state, false as child_running, (select c.id from counted c where c.id = of_group and c.due) as due from gone`

// finishSQL ends jobs and inserts the steps that follow. Plan: as endSQL, and as enqueueSQL.
const finishSQL = `
with ends as materialized (
	select * from unnest(` + endArrays + `, ` + nextArrays + `) as e(` + endColumns + `, ` + nextColumns + `)
), ` + goneTailSQL + nextTailSQL + endedTailSQL + `
select id, state, next is not null and id in (select parent_id from placed where place = 'running') as child_running,
	null::bigint as due from gone`

// finishBranchesSQL is finishSQL for jobs of which some are of a branch of a fan-out: those that end it are counted.
// Plan: as finishSQL; fan_outs_pkey.
const finishBranchesSQL = `
with ends as materialized (
	select * from unnest(` + endArrays + `, ` + nextArrays + `, $34::bigint[], $35::boolean[])
		as e(` + endColumns + `, ` + nextColumns + `, of_group, was_impaired)
), ` + goneTailSQL + `, e.of_group, e.was_impaired` + nextTailSQL + endedTailSQL + `, branches as (
	select of_group, state, was_impaired from gone where of_group is not null and next is null
), ` + noParentsTailSQL + countTailSQL + `
select id, state, next is not null and id in (select parent_id from placed where place = 'running') as child_running,
	(select c.id from counted c where c.id = of_group and c.due) as due from gone`

// Finish ends a batch of claims of this pod in one statement and one commit, each fenced and reported by itself: of an id
// that is missing from the result nothing was written. It has lost its lease, or its row is held by somebody:
// [Store.Whereabouts] tells.
//
// After an error for which [Unknown] is true, read back with [Store.Whereabouts]; never send it again blind. After one
// for which [Refused] is true, send its members in parts, or one by one.
func (s *Store) Finish(ctx context.Context, boot string, list []Ending) (map[int64]Ended, error) {
	return s.finish(ctx, nil, boot, list)
}

// FinishIn is [Store.Finish] of one claim inside a transaction of the caller, which must commit it and do nothing else in it:
// from here on its plans are pinned.
func (s *Store) FinishIn(ctx context.Context, db DB, boot string, e Ending) (Ended, error) {
	ended, err := s.finish(ctx, db, boot, []Ending{e})
	if err != nil {
		return Ended{}, err
	}
	end, ok := ended[e.ID]
	if !ok {
		return Ended{}, fmt.Errorf("finish job %d: %w", e.ID, job.ErrLeaseLost)
	}
	return end, nil
}

func (s *Store) finish(ctx context.Context, db DB, boot string, list []Ending) (map[int64]Ended, error) {
	var (
		ids, fences               []int64
		states, outcomes, reasons []string
		results, errs             []*string
		classes, codes            []*string // nil, which costs nothing, where no job failed
		groups                    []*int64
		impaired                  []bool
		children                  columns
	)
	handsOver := slices.ContainsFunc(list, func(e Ending) bool { return e.Next != nil })
	branches := slices.ContainsFunc(list, func(e Ending) bool { return e.Group != nil })
	failed := slices.ContainsFunc(list, func(e Ending) bool { return e.Class != "" })
	for _, e := range list {
		if failed {
			classes, codes = append(classes, some(string(e.Class))), append(codes, some(e.Code))
		}
		ids, fences = append(ids, e.ID), append(fences, e.Fence)
		states, outcomes = append(states, string(e.State)), append(outcomes, string(e.Outcome))
		reasons = append(reasons, string(e.Reason))
		results, errs = append(results, text(e.Result)), append(errs, some(e.Error))
		switch {
		case e.Next != nil:
			children.add(*e.Next)
		case handsOver:
			children.add(NewJob{})
		}
		if branches {
			groups, impaired = append(groups, e.Group), append(impaired, e.Impaired)
		}
	}
	sql, args := endSQL, []any{ids, fences, states, outcomes, reasons, results, errs, boot, classes, codes}
	if handsOver {
		sql, args = finishSQL, append(args, children.all()...)
	}
	if branches {
		args = append(args, groups, impaired)
		if sql = endBranchesSQL; handsOver {
			sql = finishBranchesSQL
		}
	}
	var (
		found []endedRow
		err   error
	)
	if db == nil {
		found, err = rows(ctx, s, scanEnded, sql, args...)
	} else {
		found, err = pinnedIn(ctx, db, scanEnded, s.in(sql), args)
	}
	if err != nil {
		return nil, fmt.Errorf("finish: %w", err)
	}
	ended := make(map[int64]Ended, len(found))
	for _, f := range found {
		ended[f.id] = f.Ended
	}
	return ended, nil
}

type endedRow struct {
	id int64
	Ended
}

func scanEnded(row pgx.CollectableRow) (e endedRow, err error) {
	var state string
	err = row.Scan(&e.id, &state, &e.ChildRunning, &e.OffBalance)
	e.State = job.State(state)
	return e, err
}

func some(s string) *string {
	if s == "" {
		return nil
	}
	kept := s // the address of s itself would cost an allocation also where there is nothing
	return &kept
}

// whereaboutsSQL finds what became of one claim. A job that was born running was claimed at the moment it became ready,
// that of its transaction; one that was claimed later is its claimer's to start, also when that is this pod's poller.
// Plan: primary-key and done_by_id probes; for an exists in the list of columns PostgreSQL 18 would hash whole tables.
const whereaboutsSQL = `
select w.id, w.fence,
	(select d.state from trapeze.done d where d.id = w.id and d.fence = w.fence limit 1) as ended,
	coalesce((select true from trapeze.parked p where p.id = w.id and p.fence = w.fence limit 1), false) as parked,
	coalesce((select true from trapeze.live l where l.id = w.id and l.fence = w.fence and l.pod = $3::uuid limit 1), false) as held,
	coalesce((select true from trapeze.live l where l.id = w.id and l.fence = w.fence and l.pod is null limit 1), false) as pending,
	coalesce((select true from trapeze.live l where l.id = w.child and l.fence = 1 and l.pod = $3::uuid
		and l.claimed_at = l.ready_at limit 1), false) as child_running,
	coalesce((select true from trapeze.done d where d.id = w.id and d.fence = w.fence and d.pod = $3::uuid and d.xid is not null limit 1),
		false) as ended_here
from unnest($1::bigint[], $2::bigint[], $4::bigint[]) as w(id, fence, child)`

// Whereabouts is what became of a claim whose commit was in doubt.
type Whereabouts struct {
	ID, Fence    int64
	Ended        *string // the state in done
	Parked       bool
	Held         bool // still ours: nothing was written
	Pending      bool // handed back
	ChildRunning bool // its next step was born running and is ours, so that nobody but its parent's run can start it
	EndedHere    bool // [Store.Finish] or [Store.EndWaiting] ended it for this pod: no command, recovery or maintenance did
}

// Whereabouts reads back claims by (id, fence); children[i] is the id of the step that was to follow claims[i], or of
// any other job that may have been born running here, or 0.
func (s *Store) Whereabouts(ctx context.Context, boot string, claims []job.Lease, children []int64) (map[int64]Whereabouts, error) {
	ids, fences := make([]int64, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		ids[i], fences[i] = c.JobID, c.Fence
	}
	found, err := rows(ctx, s, pgx.RowToStructByPos[Whereabouts], whereaboutsSQL, ids, fences, boot, children)
	if err != nil {
		return nil, fmt.Errorf("read back claims: %w", err)
	}
	byID := make(map[int64]Whereabouts, len(found))
	for _, w := range found {
		byID[w.ID] = w
	}
	return byID, nil
}
