package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Ending is how one claim of a job ends for good, and the step that follows it.
type Ending struct {
	ID      int64
	Fence   int64
	State   job.State // succeeded, failed or cancelled
	Outcome job.OutcomeStatus
	Reason  job.Reason
	Result  json.RawMessage // nil: none
	Error   string          // empty: none
	Class   job.ErrorClass  // of a job that failed
	Code    string          // empty: none
	Undo    json.RawMessage // the plan for its failure that its handler returned; nil: none
	Started *time.Time      // of the handler of a claim ahead; nil: its row has it
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

// An end is a list of parts, and each batch gets the statement with the parts that it needs. ends are its rows; free locks
// those that are still this pod's claims, and gone deletes them. From gone follow the row of done, the freed keys, what was
// told to the pod and the events. Where a next step follows, the parts of [placeParts] insert it, and its parent's run may
// be handed over to it; else the run ends. Where a job is of a fan-out, branches are counted.

// finishStatement is the end of a batch, of which some jobs have a next step, or are of a fan-out.
func finishStatement(nextSteps, fanOuts bool) *statement {
	arrays, columns, returned := endArrays, endColumns, ""
	if nextSteps {
		arrays, columns = list(arrays, newJobArrays), list(columns, nextColumns)
	}
	if fanOuts {
		arrays, columns, returned = list(arrays, branchArrays), list(columns, branchColumns), returned+branchReturned
	}
	if nextSteps {
		returned += nextReturned
	}
	parts := []string{
		"ends as materialized (\n\tselect * from unnest(" + arrays + ") as e(" + columns + ")\n)",
		endFree,
		"gone as (\n\t" + endGone + returned + "\n)",
	}
	started, due := "false", "null::bigint"
	if nextSteps {
		parts = append(parts, nextWish, placeParts(goesAhead), nextHandedOver, endRunsNotHandedOver)
		started = "next is not null and id in (select parent_id from placed where place = 'running')"
	} else {
		parts = append(parts, endRuns)
	}
	parts = append(parts, endDone, FreeKeys, endTold, endEvents)
	if fanOuts {
		last := ""
		if nextSteps {
			last = " and next is null"
		}
		parts = append(parts, "branches as (\n\tselect of_group, state, was_impaired from gone where of_group is not null"+last+"\n)", NoParents, CountBranches)
		due = "(select c.id from counted c where c.id = of_group and c.due)"
	}
	return newStatement(with(parts...), "select id, state, "+started+" as child_running, "+due+" as due from gone")
}

// endSQL ends jobs that no step follows: most of a drain, for which the inserts of [finishSQL] are a quarter of the cost.
// Plan: Index Scans on live_pkey, current_runs_of_subject; inserts. id, fence and pod alone are compared: a condition on
// state makes the planner choose worse (102 µs a job instead of 15.7).
//
// endBranchesSQL is endSQL for jobs of which some are the last of a branch of a fan-out: they are counted. Plan: as endSQL; fan_outs_pkey.
//
// finishSQL ends jobs and inserts the steps that follow. Plan: as endSQL, and as enqueueSQL.
//
// finishBranchesSQL is finishSQL for jobs of which some are of a branch of a fan-out: those that end it are counted.
// Plan: as finishSQL; fan_outs_pkey.
var (
	endSQL            = finishStatement(false, false)
	endBranchesSQL    = finishStatement(false, true)
	finishSQL         = finishStatement(true, false)
	finishBranchesSQL = finishStatement(true, true)
)

// The arrays of ends, and the columns that they become. Each end and its next step are one row, for a join of the two would
// compare each with each. The classes and codes of errors are null where no job of the batch failed.
const (
	endArrays = `@ids::bigint[], @fences::bigint[], @states::text[], @outcomes::text[], @reasons::text[], @results::text[], @errors::text[],
		@classes::text[], @codes::text[], @undos::text[], @started::timestamptz[]`
	endColumns  = `id, fence, state, outcome, reason, result, error, error_class, error_code, undo, started`
	nextColumns = `next, next_kind, next_lane, next_subject, args, pipeline_id, parent_id, step, planned, max_attempts, max_crashes,
		submitter, actor, unique_key, next_unique_while, next_priority, delay_ms, starts, pipeline, group_id, child_no, impaired, traceparent`
	branchArrays  = `@of_groups::bigint[], @were_impaired::boolean[]`
	branchColumns = `of_group, was_impaired`
)

const (
	// endFree locks the rows of ends with their id, fence and pod: the fence decides first. What it leaves out has lost its
	// lease, or its row is locked at this moment, and the others of the batch must not wait for that: [Store.ClaimOutcomes]
	// finds out. Plan: live_pkey.
	endFree = `free as materialized (
	select e.* from ends e join trapeze.live l on l.id = e.id
	where l.fence = e.fence and l.pod = @boot::uuid
	for update of l skip locked
)`

	// endGone deletes the rows of free; of what it does not return nothing else is written. A cancel that was committed
	// before wins, so it returns that too. Plan: live_pkey. [branchReturned] and [nextReturned] are what the parts for
	// fan-outs and next steps read of it; a job that a cancel took has no next step.
	endGone = `delete from trapeze.live l using free e
	where l.id = e.id
	returning l.id, case when l.cancel_requested then 'cancelled' else e.state end as state,
		case when l.cancel_requested then 'error' else e.outcome end as outcome,
		case when l.cancel_requested then 'cancelled' else e.reason end as reason,
		case when not l.cancel_requested then e.result end as result, e.error,
		case when not l.cancel_requested then e.error_class end as error_class,
		case when not l.cancel_requested then e.error_code end as error_code,
		case when l.cancel_requested or e.state <> 'succeeded' then e.undo end as undo, l.fence, l.epoch, l.attempt, l.crashes,
		l.priority, l.lane, l.kind, l.subject, coalesce(l.started_at, e.started) as started_at, l.event_no + 1 as event_no, l.cancel_requested, l.unique_while,
		l.claim_xid`
	branchReturned = `, e.of_group, e.was_impaired`
	nextReturned   = `,
		case when not l.cancel_requested and e.next <> 0 then e.next end as next, e.next_kind, e.next_lane, e.next_subject,
		e.args, e.pipeline_id, e.step, e.planned, e.max_attempts, e.max_crashes, e.submitter, e.actor, e.unique_key,
		e.next_unique_while, e.next_priority, e.delay_ms, e.starts, e.pipeline, e.group_id, e.child_no, e.impaired, e.traceparent`

	// nextWish is the next steps of gone, for [placeParts]. One on its parent's own (kind, subject) is handed the run.
	nextWish = `wish as (
	select next as id, next_kind as kind, next_lane as lane, next_subject as subject, args, pipeline_id, id as parent_id,
		step, planned, max_attempts, max_crashes, submitter, actor, unique_key, next_unique_while as unique_while,
		next_priority as priority, delay_ms, starts, pipeline, group_id, child_no, impaired, traceparent,
		next_subject <> '' and next_kind = kind and next_subject = subject as handed,
		(-next_priority - 1)::smallint as ahead, @boot::uuid as boot, false as approval
	from gone where next is not null
)`

	// nextHandedOver gives a child of placed that runs on its parent's own (kind, subject) its parent's row of current_runs.
	// Plan: current_runs_of_subject.
	nextHandedOver = `handed_over as (
	update trapeze.current_runs c set job_id = p.id, fence = 1
	from placed p
	where p.handed and p.place = 'running'
		and c.kind = p.kind and c.subject = p.subject and c.job_id = p.parent_id and c.state = 'running'
)`

	// endRunsNotHandedOver ends the runs of the subjects of gone that nextHandedOver leaves. Plan: current_runs_of_subject.
	endRunsNotHandedOver = `ended_runs as (
	update trapeze.current_runs c set state = 'ended'
	from gone g
	where g.subject <> '' and g.id not in (select parent_id from placed where handed and place = 'running')
		and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'running'
)`

	// endRuns ends the runs of the subjects of gone. Plan: current_runs_of_subject.
	endRuns = `ended_runs as (
	update trapeze.current_runs c set state = 'ended'
	from gone g
	where g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'running'
)`

	// endDone is the rows of gone in done.
	endDone = `ended as (
	insert into trapeze.done (id, state, outcome, reason, result, error, error_class, error_code, fence, pod, event_no, epoch,
		attempt, crashes, priority, lane, started_at, xid, claim_xid, undo)
	select id, state, outcome, reason, result::json, error, error_class, error_code, fence, @boot::uuid, event_no, epoch, attempt, crashes, priority,
		lane, started_at, pg_current_xact_id(), claim_xid, undo::json from gone
)`

	// endTold deletes the cancel requests for the claims of gone. Plan: cancel_requests_pkey.
	endTold = `told as (
	delete from trapeze.cancel_requests c using gone g
	where g.cancel_requested and c.pod = @boot::uuid and c.job_id = g.id and c.fence = g.fence
)`

	// endEvents writes the events of gone: one row for all that succeeded without a warning, and one for each other.
	endEvents = `end_events as (
	insert into trapeze.job_events (jobs, event_nos, fences, job, event_no, fence, boot, from_state, to_state, event, level,
		message, fields)
	select array_agg(id), array_agg(event_no), array_agg(fence), null, null, null, @boot::uuid, 'running', 'succeeded',
		'job.succeeded', null, null, null from gone where state = 'succeeded' and outcome = 'ok' having count(*) > 0
	union all
	select null, null, null, id, event_no, fence, @boot::uuid, 'running', state, 'job.' || state,
		case when state = 'failed' then 'error' when outcome = 'warning' then 'warn' end, left(error, 500),
		case when state = 'failed' then json_build_object('reason', reason, 'error_class', error_class, 'error_code', error_code) end
	from gone where state <> 'succeeded' or outcome <> 'ok'
)`
)

// Finish ends a batch of claims of this pod in one statement and one commit, each fenced and reported by itself: of an id
// that is missing from the result nothing was written. It has lost its lease, or its row is held by somebody:
// [Store.ClaimOutcomes] tells.
//
// After an error for which [Unknown] is true, read back with [Store.ClaimOutcomes]; never send it again blind. After one
// for which [Refused] is true, send its members in parts, or one by one.
func (s *Store) Finish(ctx context.Context, boot string, list []Ending) (map[int64]Ended, error) {
	var found []endedRow
	var err error
	if sql, by := finishOneOf(boot, list); sql != nil {
		found, err = run(ctx, s, scanEnded, sql, by)
	}
	if err == nil && len(found) == 0 {
		sql, by := finishManyOf(boot, list)
		found, err = run(ctx, s, scanEnded, sql, by)
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

// queueFinish queues [Store.Finish], pinned, for a transaction that holds all claims of the list, none with a cancel, and does nothing else
// after it. The map is filled when the batch has been sent.
func queueFinish(batch *pgx.Batch, s *Store, boot string, list []Ending) (map[int64]Ended, error) {
	sql, by := finishOneOf(boot, list)
	if sql == nil {
		sql, by = finishManyOf(boot, list)
	}
	values, err := sql.bind(by)
	if err != nil {
		return nil, err
	}
	ended := make(map[int64]Ended, len(list))
	batch.Queue(pinSQL)
	batch.Queue(s.In(sql.text), values...).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scanEnded)
		for _, f := range found {
			ended[f.id] = f.Ended
		}
		return err
	})
	return ended, nil
}

// finishManyOf returns the statement that ends a batch of claims, and its arguments.
func finishManyOf(boot string, list []Ending) (*statement, args) {
	var (
		ids, fences               []int64
		states, outcomes, reasons []string
		results, errs             []*string
		classes, codes            []*string    // nil, which costs nothing, where no job failed
		undos                     []*string    // nil where no handler returned one
		started                   []*time.Time // nil where no job was claimed ahead
		groups                    []*int64
		impaired                  []bool
		next                      columns
	)
	nextSteps := slices.ContainsFunc(list, func(e Ending) bool { return e.Next != nil })
	fanOuts := slices.ContainsFunc(list, func(e Ending) bool { return e.Group != nil })
	failed := slices.ContainsFunc(list, func(e Ending) bool { return e.Class != "" })
	undo := slices.ContainsFunc(list, func(e Ending) bool { return e.Undo != nil })
	ahead := slices.ContainsFunc(list, func(e Ending) bool { return e.Started != nil })
	for _, e := range list {
		if failed {
			classes, codes = append(classes, Some(string(e.Class))), append(codes, Some(e.Code))
		}
		if undo {
			undos = append(undos, text(e.Undo))
		}
		if ahead {
			started = append(started, e.Started)
		}
		ids, fences = append(ids, e.ID), append(fences, e.Fence)
		states, outcomes = append(states, string(e.State)), append(outcomes, string(e.Outcome))
		reasons = append(reasons, string(e.Reason))
		results, errs = append(results, text(e.Result)), append(errs, Some(e.Error))
		switch {
		case e.Next != nil:
			next.add(*e.Next)
		case nextSteps:
			next.add(NewJob{})
		}
		if fanOuts {
			groups, impaired = append(groups, e.Group), append(impaired, e.Impaired)
		}
	}
	by := make(args, 0, 36)
	by = append(by, args{{"ids", ids}, {"fences", fences}, {"states", states}, {"outcomes", outcomes}, {"reasons", reasons}, {"results", results},
		{"errors", errs}, {"classes", classes}, {"codes", codes}, {"undos", undos}, {"started", started}, {"boot", boot}}...)
	sql := endSQL
	if nextSteps {
		sql, by = finishSQL, next.named(by)
	}
	if fanOuts {
		by = append(by, args{{"of_groups", groups}, {"were_impaired", impaired}}...)
		if sql = endBranchesSQL; nextSteps {
			sql = finishBranchesSQL
		}
	}
	return sql, by
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
