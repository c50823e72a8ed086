package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// offBalanceSQL lists the fan-outs that must be settled. Fan-outs whose job must end come first, because cancelling branches may take a
// while. Plan: fan_outs_off_balance, which is usually empty.
var offBalanceSQL = newStatement(`select f.id from trapeze.fan_outs f where ` + offBalance + ` order by f.ended, f.id limit @limit`)

// OffBalance lists fan-outs whose job must end or whose branches must be cancelled.
func (s *Store) OffBalance(ctx context.Context, limit int) ([]int64, error) {
	list, err := run(ctx, s, pgx.RowTo[int64], offBalanceSQL, args{{"limit", limit}})
	if err != nil {
		return nil, fmt.Errorf("list fan-outs to settle: %w", err)
	}
	return list, nil
}

// waitingSQL reads a fan-out together with the data needed to end its job. Plan: primary key lookups.
var waitingSQL = newStatement(`
select f.id, coalesce(p.fence, 0), coalesce(p.event_no, 0), f.branches, f.open, f.failed, f.impaired, f.fail_fast, p.id is not null, f.outcome, f.result, f.plan,
	coalesce(p.priority, 0), coalesce(p.lane, ''), coalesce(p.attempt, 0), j.kind, j.subject, coalesce(j.key, ''), j.pipeline_id, j.step, j.submitter, j.group_id, j.child_no,
	j.impaired, j.ordered
from trapeze.fan_outs f join trapeze.jobs j on j.id = f.id
left join trapeze.parked p on p.id = f.id and p.why = 'children'
where f.id = @id`)

// Waiting is a job that has fanned out.
type Waiting struct {
	ID      int64
	Fence   int64
	EventNo int // number of its latest event; the other fields may be newer
	branchCounts
	FailFast      bool
	Waits         bool // the job has not ended
	Outcome       job.OutcomeStatus
	Result        json.RawMessage
	Plan          json.RawMessage
	Priority      int
	Lane          string
	Attempt       int
	Kind, Subject string
	Key           string
	PipelineID    int64
	Step          int
	Submitter     string
	Branch
	Ordered bool
}

// branchCounts counts a fan-out's branches: all of them, the unfinished ones, the failed ones, and those that ended impaired.
type branchCounts struct{ Branches, Open, Failed, Harmed int }

// Waiting returns a job's fan-out, or [job.ErrNotFound] if the job never fanned out.
func (s *Store) Waiting(ctx context.Context, id int64) (Waiting, error) {
	found, err := run(ctx, s, scanWaiting, waitingSQL, args{{"id", id}})
	if err != nil {
		return Waiting{}, fmt.Errorf("read the fan-out of job %d: %w", id, err)
	}
	if len(found) == 0 {
		return Waiting{}, fmt.Errorf("read the fan-out of job %d: %w", id, job.ErrNotFound)
	}
	return found[0], nil
}

func scanWaiting(row pgx.CollectableRow) (w Waiting, err error) {
	var result, plan []byte
	err = row.Scan(&w.ID, &w.Fence, &w.EventNo, &w.Branches, &w.Open, &w.Failed, &w.Harmed, &w.FailFast, &w.Waits, &w.Outcome, &result, &plan,
		&w.Priority, &w.Lane, &w.Attempt, &w.Kind, &w.Subject, &w.Key, &w.PipelineID, &w.Step, &w.Submitter, &w.Group, &w.No, &w.Impaired, &w.Ordered)
	w.Result, w.Plan = result, plan
	return w, err
}

// endWaitingSQL ends a waiting job once its fan-out requires the job to end, and inserts the next step in the same transaction. It matches
// the job by the number of its latest event, which distinguishes this wait from an earlier one with the same fence before a retry. The
// number also reveals a later change of priority or lane, which the next step must inherit. The select list inserts the guard before it
// locks fan-outs. Plan: primary key lookups; inserts; for the step, the same as for enqueueSQL.
var endWaitingSQL = newStatement(with(waitingGone, waitingInput, placeParts(goesAhead), waitingDone, FreeKeys, waitingEvent, waitingBranches, waitingParents, CountBranches), `
select coalesce((select place from placed), ''), (select c.id from counted c where c.id = @of_group::bigint and c.due) from gone`)

// waitingInput selects the next step of the finished job, if it has one, for [placeParts]. Plan: as for nextInput.
var waitingInput = `input_jobs as (
	select w.*, false as handed, null::int as lane_place, null::int as kind_place, ` + needsApproval + ` as approval, (-w.priority - 1)::smallint as ahead, @pod::uuid as pod
	from unnest(` + newJobs.params() + `) as w(` + newJobs.each("%[2]s") + `)
	where exists (select from gone)
)`

const (
	// waitingGone deletes the job's row from parked if its fan-out requires the job to end. Plan: parked_pkey, fan_outs_pkey.
	waitingGone = `gone as (
	delete from trapeze.parked p
	where p.id = @id and p.fence = @fence and p.event_no = @event_no::int and p.why = 'children'
		and exists (select from trapeze.fan_outs f where f.id = p.id and not f.ended and (f.open = 0 or f.fail_fast and f.failed > 0))
	returning *
)`

	// waitingDone and waitingEvent record that the job has ended.
	waitingDone = `ended as (
	insert into trapeze.done (id, state, outcome, reason, result, error, error_class, fence, pod, event_no, epoch, attempt, crashes,
		priority, lane, started_at, xid)
	select id, @state, @outcome, @reason, @result::json, @error, @error_class::text, fence, @pod::uuid, event_no + 1, epoch, attempt, crashes, priority, lane, started_at,
		pg_current_xact_id() from gone
)`
	waitingEvent = `end_event as (
	insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event, level, message, fields)
	select id, event_no + 1, fence, @pod::uuid, 'waiting', @state, 'job.' || @state,
		case when @state = 'failed' then 'error' when @outcome = 'warning' then 'warn' end, left(@error, 500),
		case when @state = 'failed' then json_build_object('reason', @reason::text, 'error_class', @error_class::text, 'error_code', null) end from gone
)`

	// waitingBranches selects the finished job as a branch of the enclosing fan-out, unless the branch continues with a next step.
	// waitingParents selects the same job as the parent of the fan-out that it waited for. Both are for [CountBranches].
	waitingBranches = `branches as (
	select @of_group::bigint, @state::text, @was_impaired::boolean from gone where @of_group::bigint is not null and not exists (select from placed)
)`
	waitingParents = `parents as (
	select id from gone
)`
)

// EndedWaiting is the result of ending a waiting job.
type EndedWaiting struct {
	Next       Place  // where the next step was inserted; empty if there is none
	OffBalance *int64 // the enclosing fan-out, if it must be settled
	Here       bool   // this pod ended the job
}

// EndWaiting ends a waiting job. It returns false if another pod has ended the job, if nothing requires the job to end, or if the job has
// changed since it was read, in which case it must be reread. After an error for which [Unknown] is true, call [Store.ClaimOutcomes].
func (s *Store) EndWaiting(ctx context.Context, podID string, e Ending) (ended EndedWaiting, ok bool, err error) {
	var next []*NewJob
	if e.Next != nil {
		next = []*NewJob{e.Next}
	}
	by := slices.Concat(endings.values(endWaitingSQL, &e), newJobs.arrays(endWaitingSQL, next), args{{"pod", podID}, {"event_no", e.EventNo}})
	found, err := run(ctx, s, func(row pgx.CollectableRow) (x EndedWaiting, err error) {
		return x, row.Scan(&x.Next, &x.OffBalance)
	}, endWaitingSQL, by)
	if err != nil {
		return EndedWaiting{}, false, fmt.Errorf("end waiting job %d: %w", e.ID, err)
	}
	if len(found) == 0 {
		return EndedWaiting{}, false, nil
	}
	found[0].Here = true
	return found[0], true, nil
}
