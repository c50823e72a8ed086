package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Ending is the final outcome of one claim of a job, together with the next step.
type Ending struct {
	ID      int64
	Fence   int64
	State   job.State // succeeded, failed or cancelled
	Outcome job.OutcomeStatus
	Reason  job.Reason
	Result  json.RawMessage // nil if there is none
	Error   string          // empty if there is none
	Class   job.ErrorClass  // set if the job failed
	Code    string          // empty if there is none
	Undo    json.RawMessage // the undo plan that the handler returned, for a job that failed; nil if there is none
	Started *time.Time      // start time of the handler, for a job that was claimed ahead of time; nil if the row already contains it
	Next    *NewJob         // nil ends the pipeline; set Next.Starts to start the step on insert
	Branch                  // branch of the finished job
	InLine  bool            // the finished job has a subject or a key
	EventNo int             // only for a job that was waiting: the number that [Store.Waiting] read
}

// Ended is the result of an accepted [Ending].
type Ended struct {
	State        job.State    // cancelled if a cancel request was committed first
	ChildRunning bool         // the next step was started for this pod, with fence 1
	OffBalance   *int64       // the fan-out that now needs to be settled; see [Store.FanOut]
	Heir         *AdmittedJob // the subject's next job, which became pending in the same commit; if nil, call [Store.AdmitNext]
	EndedBefore  bool         // set by the caller: nothing was written, because an earlier attempt or another process had already ended the claim
	ReplyLost    bool         // set by the caller: the end was read back, so Heir is unknown
	EndedHere    bool         // set by the caller along with EndedBefore: this pod's earlier attempt ended the claim, but its reply was lost
}

// A finish statement is a list of CTEs, and each batch uses a statement that contains only the CTEs it needs. The gone CTE locks and
// deletes those of the batch's claims that this pod still holds. The other CTEs read gone: they insert into done, free keys, delete cancel
// requests and write events. If there is a next step, [placeParts] inserts it and may hand the parent's run over to it. Otherwise, the run
// ends. If jobs belong to fan-outs, their branches are counted.

// finishStatement builds the statement for a batch in which jobs may have next steps or belong to fan-outs.
func finishStatement(nextSteps, fanOuts bool) *statement {
	params, names, returned := endings.params("of_group", "was_impaired"), endings.names("of_group", "was_impaired"), ""
	if nextSteps {
		params, names, returned = list(params, newJobs.params()), list(names, newJobs.names()), nextReturned
	}
	if fanOuts {
		params, names, returned = list(params, "@of_group::bigint[], @was_impaired::boolean[]"), list(names, "of_group, was_impaired"), returned+", e.of_group, e.was_impaired"
	}
	parts := []string{
		"gone as (\n\tdelete from trapeze.live l\n\tusing (select k.ctid as at, e.* from unnest(" + params + ") as e(" + names + ")" + endLocked + ") e" + endGone + returned + "\n)",
	}
	started, due, kept := "false", "null::bigint", ""
	if nextSteps {
		parts = append(parts, nextInput, placeParts(goesAhead), nextHandedOver)
		started = "next is not null and gone.id in (select parent_id from placed where place = 'running')"
		kept = " and w.id not in (select parent_id from placed where handed and place in ('running', 'pending'))"
	}
	parts = append(parts, endGuards(kept))
	parts = append(parts, endDone, FreeKeys, endTold, endEvents)
	if fanOuts {
		last := ""
		if nextSteps {
			last = " and next is null and (select count(*) from placed) >= 0" // guards are inserted before fan-outs are locked
		}
		parts = append(parts, "branches as (\n\tselect of_group, state, was_impaired from gone where of_group is not null"+last+"\n)", NoParents, CountBranches)
		due = "(select c.id from counted c where c.id = of_group and c.due)"
	}
	return newStatement(with(parts...), "select gone.id, state, "+started+" as child_running, "+due+" as due, m.kind, m.lane, m.priority::int, m.run_after from gone left join moved m on m.gone = gone.id")
}

// endGuards gives the guard of each job in the gone CTE to the first job that is parked for the same subject, and makes that job pending. If there is
// none, it has a key and needs a place first, another transaction has locked its row, or a job that is due but not promoted comes first, the guard is freed. kept is a condition that leaves out jobs that hand over their guard otherwise. Guards of
// next steps are inserted before: two ends that use each other's subjects could deadlock otherwise. Plan: per job with a subject, one probe of
// parked_for_subject, parked_pkey and subjects_by_subject.
func endGuards(kept string) string {
	return `heirs as materialized (
	select w.id as gone, w.kind, w.subject, h.id from gone w cross join lateral ` + lockFirst + ` where w.subject <> '' and h.key is null` + kept + `
), inherited as (
	update trapeze.subjects c set job_id = h.id, previous_job = h.gone from heirs h
	where c.kind = h.kind and c.subject = h.subject and c.job_id = h.gone and c.state = 'held'
	returning c.kind, c.subject, c.job_id, h.gone
), outdated as (
	delete from trapeze.subjects c using inherited i where c.kind = i.kind and c.subject = i.subject and c.state = 'free'
), moved as (
	delete from trapeze.parked p using inherited i where p.id = i.job_id returning p.*, i.gone
), admitted as (
	insert into trapeze.live (ready_at, state, ` + ParkedColumns + `) select run_after, 'pending', ` + ParkedColumns + ` from moved
), freed_guards as (
	update trapeze.subjects c set state = 'free' from gone w
	where w.subject <> '' and w.id not in (select gone from heirs)` + kept + `
		and c.kind = w.kind and c.subject = w.subject and c.job_id = w.id and c.state = 'held'
)`
}

// endSQL ends jobs that have no next step. While a backlog is being drained, most jobs have none, and the inserts of [finishSQL] would make
// up a quarter of their cost. It compares only id, fence and pod, because a condition on state makes the planner choose a worse plan (102
// µs per job instead of 15.7). Plan: Index Scans on live_pkey, subjects_by_subject; a Tid Scan; inserts.
//
// endBranchesSQL is like endSQL, for batches in which some jobs are the last of a fan-out branch. It counts the branches that end. Plan: as
// endSQL; fan_outs_pkey.
//
// finishSQL ends jobs and inserts their next steps. Plan: as endSQL and enqueueSQL.
//
// finishBranchesSQL is like finishSQL, for batches in which some jobs belong to a fan-out branch. It counts the branches that end. Plan: as
// finishSQL; fan_outs_pkey.
var (
	endSQL            = finishStatement(false, false)
	endBranchesSQL    = finishStatement(false, true)
	finishSQL         = finishStatement(true, false)
	finishBranchesSQL = finishStatement(true, true)
)

// endings are the columns of a batch. A finished job and its next step share one row, because a join would compare every job with every next
// step.
var endings = columns[*Ending]{"", []columnOf[*Ending]{
	column("id", "bigint", func(e *Ending) int64 { return e.ID }),
	column("fence", "bigint", func(e *Ending) int64 { return e.Fence }),
	column("state", "text", func(e *Ending) string { return string(e.State) }),
	column("outcome", "text", func(e *Ending) string { return string(e.Outcome) }),
	column("reason", "text", func(e *Ending) string { return string(e.Reason) }),
	column("result", "text", func(e *Ending) *string { return text(e.Result) }),
	column("error", "text", func(e *Ending) *string { return Some(e.Error) }),
	rare("error_class", "text", func(e *Ending) *string { return Some(string(e.Class)) }),
	rare("error_code", "text", func(e *Ending) *string { return Some(e.Code) }),
	rare("undo", "text", func(e *Ending) *string { return text(e.Undo) }),
	rare("started", "timestamptz", func(e *Ending) *time.Time { return e.Started }),
	column("of_group", "bigint", func(e *Ending) *int64 { return e.Group }),
	column("was_impaired", "boolean", func(e *Ending) bool { return e.Impaired }),
}}

// nextReturned are the columns of the gone CTE from which nextInput selects the jobs' next steps, for [placeParts]. A step with its parent's
// (kind, subject) takes over the parent's run, and one with its parent's lane and key the parent's places. Plan: one probe of lanes_pkey for a step that enters a different lane.
var (
	nextReturned = list(`, case when not l.cancel_requested and e.new_id <> 0 then e.new_id end as next`, newJobs.each("e.%[1]s%[2]s", "parent_id"))
	nextInput    = `input_jobs as (
	select w.*, ` + needsApproval + ` as approval
	from (select w.*, case when w.lane_place is not null then w.had_kind_place end as kind_place
		from (select w.*, case when w.had_lane_place is not null and (` + keepsPlaces + `) then w.had_lane_place end as lane_place from (select id as parent_id, ` + newJobs.each("%[1]s%[2]s as %[2]s", "parent_id") + `,
			new_subject <> '' and new_kind = kind and new_subject = subject as handed,
			case when new_key = key and new_lane = lane then lane_place end as had_lane_place,
			case when new_kind = kind then kind_place end as had_kind_place, (-new_priority - 1)::smallint as ahead, @pod::uuid as pod
		from gone where next is not null) w offset 0) w
	) w
)`
)

const (
	// endLocked locks the rows whose id, fence and pod match those of the batch. It leaves out a row if the lease was lost, or if another
	// transaction has locked the row, because that transaction must not delay the rest of the batch. [Store.ClaimOutcomes] tells the two
	// apart. Plan: live_pkey.
	endLocked = `
	join trapeze.live k on k.id = any(array[e.id])
	where k.fence = e.fence and k.pod = @pod::uuid
	for update of k skip locked`

	// endGone deletes the locked rows by ctid, which saves a second search by key. A row that changed between the statement's snapshot and
	// its lock is left out, as if it were still locked. Nothing else is written for a row that endGone does not return. A cancel request
	// that was committed first takes precedence, and the cancelled job gets no next step. Plan: a Tid Scan.
	endGone = `
	where l.ctid = e.at
	returning l.id, case when l.cancel_requested then 'cancelled' else e.state end as state,
		case when l.cancel_requested then 'error' else e.outcome end as outcome,
		case when l.cancel_requested then 'cancelled' else e.reason end as reason,
		case when not l.cancel_requested then e.result end as result, e.error,
		case when not l.cancel_requested then e.error_class end as error_class,
		case when not l.cancel_requested then e.error_code end as error_code,
		case when l.cancel_requested or e.state <> 'succeeded' then e.undo end as undo, l.fence, l.epoch, l.attempt, l.crashes,
		l.priority, l.lane, l.kind, l.subject, coalesce(l.started_at, e.started) as started_at, l.event_no + 1 as event_no, l.cancel_requested, l.unique_while,
		l.claim_xid, l.key, l.lane_place, l.kind_place`
	// nextHandedOver gives the parent's guard to a next step with the same kind and subject. Plan: subjects_by_subject.
	nextHandedOver = `handed_over as (
	update trapeze.subjects c set job_id = p.id, previous_job = p.parent_id
	from placed p
	where p.handed and p.place in ('running', 'pending')
		and c.kind = p.kind and c.subject = p.subject and c.job_id = p.parent_id and c.state = 'held'
)`

	// endDone inserts the gone CTE's rows into done.
	endDone = `ended as (
	insert into trapeze.done (id, state, outcome, reason, result, error, error_class, error_code, fence, pod, event_no, epoch,
		attempt, crashes, priority, lane, started_at, xid, claim_xid, undo)
	select id, state, outcome, reason, result::json, error, error_class, error_code, fence, @pod::uuid, event_no, epoch, attempt, crashes, priority,
		lane, started_at, pg_current_xact_id(), claim_xid, undo::json from gone
)`

	// endTold deletes the cancel requests for the claims in the gone CTE. Plan: cancel_requests_pkey.
	endTold = `told as (
	delete from trapeze.cancel_requests c using gone g
	where g.cancel_requested and c.pod = @pod::uuid and c.job_id = g.id and c.fence = g.fence
)`

	// endEvents writes the events for the jobs in the gone CTE. It writes a single row for all jobs that succeeded without a warning, and a
	// separate row for every other job.
	endEvents = `end_events as (
	insert into trapeze.job_events (jobs, event_nos, fences, job, event_no, fence, pod, from_state, to_state, event, level,
		message, fields)
	select array_agg(id), array_agg(event_no), array_agg(fence), null, null, null, @pod::uuid, 'running', 'succeeded',
		'job.succeeded', null, null, null from gone where state = 'succeeded' and outcome = 'ok' having count(*) > 0
	union all
	select null, null, null, id, event_no, fence, @pod::uuid, 'running', state, 'job.' || state,
		case when state = 'failed' then 'error' when outcome = 'warning' then 'warn' end, left(error, 500),
		case when state = 'failed' then json_build_object('reason', reason, 'error_class', error_class, 'error_code', error_code) end
	from gone where state <> 'succeeded' or outcome <> 'ok'
)`
)

// Finish ends a batch of this pod's claims in one statement and one commit. Each claim is fenced and reported separately. If an id is
// missing from the result, nothing was written for it, because its lease was lost, or because another transaction has locked or just
// changed its row. [Store.ClaimOutcomes] reports which.
//
// After an error for which [Unknown] is true, read the outcome back with [Store.ClaimOutcomes] before sending the batch again. After an
// error for which [Refused] is true, split the batch, or send its members one by one.
func (s *Store) Finish(ctx context.Context, podID string, list []Ending) (map[int64]Ended, error) {
	var found []endedRow
	var err error
	if sql, by := finishOneOf(podID, list); sql != nil {
		found, err = run(ctx, s, scanEnded, sql, by)
	}
	if err == nil && len(found) == 0 {
		sql, by := finishManyOf(podID, list)
		found, err = run(ctx, s, scanEnded, sql, by)
	}
	if err != nil {
		return nil, fmt.Errorf("finish: %w", err)
	}
	return endedByID(found), nil
}

func endedByID(found []endedRow) map[int64]Ended {
	ended := make(map[int64]Ended, len(found))
	for _, f := range found {
		ended[f.id] = f.Ended
	}
	return ended
}

// queueFinish queues the statement of [Store.Finish], with pinned plans, for a transaction that has locked all claims in the list and does
// nothing else afterwards. None of the claims may have a cancel request. The map is filled when the batch is sent.
func queueFinish(batch *pgx.Batch, s *Store, podID string, list []Ending) (map[int64]Ended, error) {
	sql, by := finishOneOf(podID, list)
	if sql == nil {
		sql, by = finishManyOf(podID, list)
	}
	return queueEnds(batch, s, sql, by)
}

// queueEnds queues a statement that ends claims, with pinned plans. The map is filled when the batch is sent.
func queueEnds(batch *pgx.Batch, s *Store, sql *statement, by args) (map[int64]Ended, error) {
	values, err := sql.bind(by)
	if err != nil {
		return nil, err
	}
	ended := map[int64]Ended{}
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

// FinishIn is like [Store.Finish] but runs in the caller's transaction, which must already have locked the claims. The pinned planner
// settings stay in effect for the rest of the transaction.
func FinishIn(ctx context.Context, s *Store, tx pgx.Tx, podID string, list []Ending) (map[int64]Ended, error) {
	batch := &pgx.Batch{}
	sql, by := finishManyOf(podID, list)
	ended, err := queueEnds(batch, s, sql, by)
	if err == nil {
		err = tx.SendBatch(ctx, batch).Close()
	}
	if err != nil {
		return nil, fmt.Errorf("finish: %w", err)
	}
	return ended, nil
}

// finishManyOf returns the statement that ends a batch of claims, with its arguments.
func finishManyOf(podID string, list []Ending) (*statement, args) {
	sql, nexts, none := endSQL, make([]*NewJob, len(list)), &NewJob{}
	fanOuts := slices.ContainsFunc(list, func(e Ending) bool { return e.Group != nil })
	if fanOuts {
		sql = endBranchesSQL
	}
	for i, e := range list {
		nexts[i] = cmp.Or(e.Next, none)
		switch {
		case e.Next == nil:
		case fanOuts:
			sql = finishBranchesSQL
		default:
			sql = finishSQL
		}
	}
	return sql, slices.Concat(endings.arrays(sql, pointers(list)), newJobs.arrays(sql, nexts), args{{"pod", podID}})
}

type endedRow struct {
	id int64
	Ended
}

func scanEnded(row pgx.CollectableRow) (e endedRow, err error) {
	var kind, lane *string
	var priority *int
	var ready *time.Time
	err = row.Scan(&e.id, (*string)(&e.State), &e.ChildRunning, &e.OffBalance, &kind, &lane, &priority, &ready)
	if lane != nil {
		e.Heir = &AdmittedJob{*kind, *lane, *priority, *ready}
	}
	return e, err
}
