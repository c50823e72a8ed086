package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// offBalanceSQL lists fan-outs of which something is to be done: first those whose job is to end, for those whose branches are being
// cancelled may take a while. Plan: fan_outs_off_balance, empty most of the time.
const offBalanceSQL = `select f.id from trapeze.fan_outs f where ` + offBalance + ` order by f.ended, f.id limit $1`

// OffBalance lists fan-outs whose job is to end, or whose branches are to be cancelled.
func (s *Store) OffBalance(ctx context.Context, limit int) ([]int64, error) {
	list, err := rows(ctx, s, pgx.RowTo[int64], offBalanceSQL, limit)
	if err != nil {
		return nil, fmt.Errorf("list fan-outs off balance: %w", err)
	}
	return list, nil
}

// waitingSQL reads a fan-out with what its job's end needs. Plan: primary keys.
const waitingSQL = `
select f.id, coalesce(p.fence, 0), coalesce(p.event_no, 0), f.branches, f.open, f.failed, f.impaired, f.fail_fast, p.id is not null, f.outcome, f.result, f.plan,
	coalesce(p.priority, 0), coalesce(p.lane, ''), j.kind, j.subject, j.pipeline_id, j.step, j.submitter, j.group_id, j.child_no,
	j.impaired
from trapeze.fan_outs f join trapeze.jobs j on j.id = f.id
left join trapeze.parked p on p.id = f.id and p.why = 'children'
where f.id = $1`

// Waiting is a job that fanned out.
type Waiting struct {
	ID                             int64
	Fence                          int64
	EventNo                        int // of its latest event: what is read here is as it was after that
	Branches, Open, Failed, Harmed int
	FailFast                       bool
	Waits                          bool // it has not ended
	Outcome                        job.Quality
	Result                         json.RawMessage
	Plan                           json.RawMessage
	Priority                       int
	Lane, Kind, Subject            string
	PipelineID                     int64
	Step                           int
	Submitter                      string
	Branch
}

// Waiting reads a fan-out: [job.ErrNotFound] when the job never fanned out.
func (s *Store) Waiting(ctx context.Context, id int64) (Waiting, error) {
	found, err := rows(ctx, s, scanWaiting, waitingSQL, id)
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
		&w.Priority, &w.Lane, &w.Kind, &w.Subject, &w.PipelineID, &w.Step, &w.Submitter, &w.Group, &w.No, &w.Impaired)
	w.Result, w.Plan = result, plan
	return w, err
}

// endWaitingSQL ends a job that waited, once its fan-out calls for it, and inserts the step that follows: whoever deletes the
// row of parked is the one that does. The number of its latest event tells a wait from the one before a retry, whose fence is the same,
// and from what it was before a nice or a move, which the step is to heed. Plan: primary keys; inserts; as enqueueSQL for the step.
const endWaitingSQL = `
with gone as (
	delete from trapeze.parked p
	where p.id = $1 and p.fence = $2 and p.event_no = $34::int and p.why = 'children'
		and exists (select from trapeze.fan_outs f where f.id = p.id and not f.ended and (f.open = 0 or f.fail_fast and f.failed > 0))
	returning *
), wish as (
	select w.*, false as handed, false as approval, (-w.priority - 1)::smallint as ahead, $8::uuid as boot
	from unnest($9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[], $16::int[],
		$17::text[], $18::int[], $19::int[], $20::text[], $21::text[], $22::text[], $23::text[], $24::int[], $25::bigint[],
		$26::boolean[], $27::text[], $28::bigint[], $29::int[], $30::boolean[], $31::text[]) as w(id, kind, lane, subject, args, pipeline_id,
		parent_id, step, planned, max_attempts, max_crashes, submitter, actor, unique_key, unique_while, priority, delay_ms, starts,
		pipeline, group_id, child_no, impaired, traceparent)
	where exists (select from gone)
), ` + placeSQL + `, ended as (
	insert into trapeze.done (id, state, outcome, reason, result, error, error_class, fence, pod, event_no, epoch, attempt, crashes,
		priority, lane, started_at, xid)
	select id, $3, $4, $5, $6::json, $7, $35::text, fence, $8::uuid, event_no + 1, epoch, attempt, crashes, priority, lane, started_at,
		pg_current_xact_id() from gone
), ` + freeKeysTailSQL + `, end_event as (
	insert into trapeze.job_events (job, event_no, fence, boot, from_state, to_state, event, level, message, fields)
	select id, event_no + 1, fence, $8::uuid, 'waiting', $3, 'job.' || $3,
		case when $3 = 'failed' then 'error' when $4 = 'warning' then 'warn' end, left($7, 500),
		case when $3 = 'failed' then json_build_object('reason', $5::text, 'error_class', $35::text, 'error_code', null) end from gone
), branches as (
	select $32::bigint, $3::text, $33::boolean from gone where $32::bigint is not null and not exists (select from placed)
), parents as (
	select id from gone
), ` + countTailSQL + `
select coalesce((select place from placed), ''), (select c.id from counted c where c.id = $32::bigint and c.due) from gone`

// EndedWaiting is what became of the end of a job that waited.
type EndedWaiting struct {
	Next       Place  // where the step that follows was put; empty: there is none
	OffBalance *int64 // the fan-out around it that this leaves off balance
	Here       bool   // this pod ended it
}

// EndWaiting ends a job that waited. ok is false when somebody else has, when nothing calls for it, or when it has changed since it was
// read: look again. After an error for which
// [Unknown] is true, look with [Store.Whereabouts].
func (s *Store) EndWaiting(ctx context.Context, boot string, e Ending) (ended EndedWaiting, ok bool, err error) {
	var c columns
	if e.Next != nil {
		c.add(*e.Next)
	}
	args := append([]any{e.ID, e.Fence, string(e.State), string(e.Outcome), string(e.Reason), text(e.Result), some(e.Error), boot},
		append(c.all(), e.Group, e.Impaired, e.EventNo, some(string(e.Class)))...)
	found, err := rows(ctx, s, func(row pgx.CollectableRow) (x EndedWaiting, err error) {
		return x, row.Scan(&x.Next, &x.OffBalance)
	}, endWaitingSQL, args...)
	if err != nil {
		return EndedWaiting{}, false, fmt.Errorf("end waiting job %d: %w", e.ID, err)
	}
	if len(found) == 0 {
		return EndedWaiting{}, false, nil
	}
	found[0].Here = true
	return found[0], true, nil
}
