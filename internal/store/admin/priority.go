package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// niceLiveSQL changes the priority of a pending job. The job keeps its ready_at, which determines its position among jobs with the new
// priority. The row is replaced, so that a claim with an older snapshot finds it gone and skips it. If the row were updated instead, the
// claim would follow it to the new version but use the plan that it had already read. Plan: Index Scan on live_pkey, one row.
const niceLiveSQL = `
with gone as (
	delete from trapeze.live where id = $1 and state = 'pending' returning *
), again as (
	insert into trapeze.live (id, ready_at, claimed_at, started_at, fence, pod, event_no, writes, epoch, attempt, crashes, priority,
		cancel_requested, isolated, state, unique_while, lane, kind, subject, claim_xid, key, lane_place, kind_place, due_at, start_by)
	select id, ready_at, claimed_at, started_at, fence, pod, event_no + 1, writes, epoch, attempt, crashes, $2,
		cancel_requested, isolated, state, unique_while, lane, kind, subject, claim_xid, key, lane_place, kind_place, due_at, start_by from gone
), event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select id, event_no + 1, fence, 'pending', 'pending', 'job.niced', $3, json_build_object('priority', $2::int, 'before', priority)
	from gone
)
select priority::int from gone`

// niceParkedSQL changes the priority with which a parked job, or the step after it, will be claimed. Plan: Index Scan on parked_pkey, one
// row.
const niceParkedSQL = `
with held as materialized (
	select p.id, p.priority, case p.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end as state
	from trapeze.parked p where p.id = $1 for update
), niced as (
	update trapeze.parked p set priority = $2, event_no = p.event_no + 1 from held h where p.id = h.id
	returning p.id, p.event_no, p.fence
), event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select n.id, n.event_no, n.fence, h.state, h.state, 'job.niced', $3, json_build_object('priority', $2::int, 'before', h.priority)
	from niced n join held h on h.id = n.id
)
select priority::int from held`

// A job's next steps are stored in its row or, while it is waiting for branches, in the row of its fan-out. Plan: primary key lookups.
const (
	runsSQL        = `select id from trapeze.live where id = $1 and state = 'running'`
	plansSQL       = `select j.planned, f.plan from trapeze.jobs j left join trapeze.fan_outs f on f.id = j.id where j.id = $1 for update of j`
	changePlansSQL = `
with step as (
	update trapeze.jobs set planned = $2::json where id = $1 and planned is not null
)
update trapeze.fan_outs set plan = $3::json where id = $1 and plan is not null`
)

// SetPriority changes the priority of a waiting job. If chain is set, it also changes the priority of the steps planned after the job. A
// step that sets no priority always inherits the priority of the previous step. SetPriority searches live, parked and done in this order,
// and repeats the search if the job was moving between them. It returns [job.ErrNotFound] if the job does not exist, [job.ErrNotQueued] if
// it is running, and [job.ErrAlreadyTerminal] if it has ended.
func SetPriority(ctx context.Context, s *store.Store, id int64, priority int, chain bool, actor string) error {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	for {
		found, err := niceOnce(ctx, s, id, priority, chain, actor)
		if err == nil && !found {
			err = mustExist(ctx, s, id)
		}
		if err != nil && !isHeld(err) {
			return fmt.Errorf("change the priority of job %d: %w", id, err)
		}
		if found {
			admitAgain(ctx, s, id)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("change the priority of job %d: its row is locked by a transaction that does not end: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// niceOnce searches live, parked and done for a job, and changes its priority if it is waiting.
func niceOnce(ctx context.Context, s *store.Store, id int64, priority int, chain bool, actor string) (found bool, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		found = false
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
		}
		for _, sql := range []string{niceLiveSQL, niceParkedSQL} {
			// The row of a running job may stay locked until the handler's transaction ends, so check first whether the job is running.
			if running, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(runsSQL), []any{id}); err != nil || len(running) > 0 {
				return orElse(err, job.ErrNotQueued)
			}
			before, err := store.QueryPinned(ctx, tx, pgx.RowTo[int], s.In(sql), []any{id, priority, actor})
			if err != nil {
				return err
			}
			if len(before) == 0 {
				continue
			}
			steps := 0
			if chain {
				if steps, err = nicePlans(ctx, s, tx, id, priority); err != nil {
					return err
				}
			}
			found = true
			return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.nice", Target: jobTarget(id),
				Before: map[string]any{"priority": before[0]}, After: map[string]any{"priority": priority, "steps": steps}})
		}
		over, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[Cancellation], s.In(doneStateSQL), []any{id})
		if err == nil && len(over) > 0 {
			err = job.ErrAlreadyTerminal
		}
		return err
	})
	return found, err
}

// linesSQL reads the lines of a job. Plan: jobs_pkey.
const linesSQL = `select kind, subject, coalesce(key, '') from trapeze.jobs where id = $1`

// admitAgain lets the most urgent job of a line run first, after a change to the priority of one of its jobs. After an error, the polls do.
func admitAgain(ctx context.Context, s *store.Store, id int64) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[store.Line], linesSQL, id)
	if err == nil && len(found) > 0 {
		_, _ = s.AdmitNext(ctx, store.Lines(found[0].Kind, found[0].Subject, found[0].Key)...)
	}
}

// nicePlans sets the priority of all steps planned after a job, and returns the number of steps.
func nicePlans(ctx context.Context, s *store.Store, tx pgx.Tx, id int64, priority int) (steps int, err error) {
	type plans struct{ Planned, Plan []byte }
	found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[plans], s.In(plansSQL), []any{id})
	if err != nil || len(found) == 0 {
		return 0, err
	}
	planned, n, err := nicePlan(found[0].Planned, priority)
	if err != nil {
		return 0, err
	}
	plan, m, err := nicePlan(found[0].Plan, priority)
	if err != nil || n+m == 0 {
		return 0, err
	}
	_, err = tx.Exec(ctx, s.In(changePlansSQL), id, planned, plan)
	if plan != nil {
		return m, err // the fan-out and the job's row contain the same steps
	}
	return n, err
}

// nicePlan sets the priority of all steps in a plan, and returns the number of steps. It keeps all other fields, including unknown ones, so
// a step that needs approval still needs it.
func nicePlan(plan []byte, priority int) (niced *string, steps int, err error) {
	if plan == nil {
		return nil, 0, nil
	}
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(plan, &list); err != nil {
		return nil, 0, fmt.Errorf("read the plan: %w", err)
	}
	for _, step := range list {
		step["priority"] = json.RawMessage(strconv.Itoa(priority))
	}
	raw, err := text.JSON(list)
	return new(string(raw)), len(list), text.Wrap(err, "write the plan")
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

const (
	// niceRunningSQL changes the priority that a running job will have if it is retried. elsewhere reports whether another engine runs the
	// job. Such an engine reads the priority and the planned steps when it ends the job, so no pod has to confirm them. Plan: Index Scan on
	// live_pkey, one row.
	niceRunningSQL = `
with held as materialized (
	select l.id, l.priority, substr(l.pod::text, 15, 1) = '8' as elsewhere from trapeze.live l where l.id = $1 and l.state = 'running' for update
), niced as (
	update trapeze.live l set priority = $2, event_no = l.event_no + 1 from held h where l.id = h.id
	returning l.id, l.event_no, l.fence
), event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select n.id, n.event_no, n.fence, 'running', 'running', 'job.niced', $3, json_build_object('priority', $2::int, 'before', h.priority)
	from niced n join held h on h.id = n.id
)
select priority::int, elsewhere from held`
	// nextStepSQL finds the next step after a job. Plan: jobs_pkey, jobs_of_pipeline.
	nextStepSQL = `
select n.id from trapeze.jobs j join trapeze.jobs n on n.pipeline_id = j.pipeline_id and coalesce(n.group_id, 0) = coalesce(j.group_id, 0)
	and coalesce(n.child_no, 0) = coalesce(j.child_no, 0) and n.step > 0 and n.step = j.step + 1
where j.id = $1 and n.parent_id = j.id limit 1`
)

// SetChainPriority changes the priority of a running job's planned steps, and its own priority in case it is retried. It also asks the
// job's pod to apply the change, because the pod builds the next step from the plan that it read when it claimed the job, and returns that
// request. If another engine runs the job, it makes no request. It returns [job.ErrNotRunning] if the job is not running. If a handler's
// transaction has locked the job's row, SetChainPriority retries until that transaction has ended.
func SetChainPriority(ctx context.Context, s *store.Store, id int64, priority int, actor string) (request Asked, err error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	for {
		request, err = niceRunning(ctx, s, id, priority, actor)
		if err == nil {
			return request, nil
		}
		if !isHeld(err) {
			return request, fmt.Errorf("change the priority of the steps after job %d: %w", id, err)
		}
		select {
		case <-ctx.Done():
			return request, fmt.Errorf("change the priority of job %d: its row is locked by a transaction that does not end: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func niceRunning(ctx context.Context, s *store.Store, id int64, priority int, actor string) (request Asked, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
		}
		type running struct {
			Priority  int
			Elsewhere bool
		}
		before, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[running], s.In(niceRunningSQL), []any{id, priority, actor})
		if err != nil {
			return err
		}
		if len(before) == 0 {
			return job.ErrNotRunning
		}
		if request = (Asked{}); !before[0].Elsewhere {
			a, err := ask(ctx, s, tx, id, store.RequestPriority, &priority)
			if err != nil || a == nil {
				return orElse(err, job.ErrNotRunning)
			}
			request = *a
		}
		steps, err := nicePlans(ctx, s, tx, id, priority)
		if err != nil {
			return err
		}
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.nice", Target: jobTarget(id),
			Before: map[string]any{"priority": before[0].Priority}, After: map[string]any{"priority": priority, "steps": steps}})
	})
	return request, err
}

// NextStep returns the job that follows a job in its chain, or 0 if there is none.
func NextStep(ctx context.Context, s *store.Store, id int64) (int64, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[int64], nextStepSQL, id)
	return append(found, 0)[0], text.Wrap(err, "find the step after job %d", id)
}

const (
	// askClaimSQL adds a request to the pod that is running a job, and returns that pod. It adds none if another engine runs the job,
	// because engines do not answer; an engine's pod id is a version 8 UUID. Plan: live_pkey and pods_pkey, one row each.
	askClaimSQL = `
with asked as (
	insert into trapeze.claim_requests (pod, job_id, fence, what, priority)
	select l.pod, l.id, l.fence, $2, $3 from trapeze.live l where l.id = $1 and l.state = 'running' and substr(l.pod::text, 15, 1) <> '8'
	returning id, pod, fence
)
select a.id, a.pod::text, a.fence, coalesce((select p.name from trapeze.pods p where p.id = a.pod), '') from asked a`
	// claimAnswerSQL reads the answer to a request, and whether the pod still holds the claim. Plan: claim_requests_pkey, live_pkey.
	claimAnswerSQL = `
select r.answered_at, coalesce(r.answer, ''), exists (select from trapeze.live l where l.id = r.job_id and l.fence = r.fence and l.state = 'running')
from trapeze.claim_requests r where r.id = $1`
	// removeRequestSQL deletes a request. Plan: claim_requests_pkey.
	removeRequestSQL = `delete from trapeze.claim_requests where id = $1`
)

// Asked is a request to the pod that holds a claim.
type Asked struct {
	ID    int64
	PodID string
	Fence int64
	Pod   string // name of the pod or remote worker
}

// Answer is a pod's answer to a request.
type Answer struct {
	At   *time.Time // nil until the pod has answered
	Text string
	Held bool // the pod still holds the claim
}

// ask adds a request to the pod that is running a job. The pod is notified on commit. ask returns nil if the job is not running.
func ask(ctx context.Context, s *store.Store, tx pgx.Tx, id int64, what string, priority *int) (*Asked, error) {
	found, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[Asked], askClaimSQL, id, what, priority)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], s.NotifySettings(ctx, tx)
}

// AskStack asks the pod that is running a job for the stack of the job's handler. It returns [job.ErrNotFound] if the job does not exist,
// and [job.ErrNotRunning] if no pod is running it.
func AskStack(ctx context.Context, s *store.Store, id int64, actor string) (request Asked, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		a, err := ask(ctx, s, tx, id, store.RequestStack, nil)
		switch {
		case err != nil:
			return err
		case a == nil:
			_, err := view.One(store.Query(ctx, s, tx, pgx.RowTo[int64], jobExistsSQL, id))
			return orElse(err, job.ErrNotRunning)
		}
		request = *a
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.stack", Target: jobTarget(id)})
	})
	return request, text.Wrap(err, "read the stack of job %d", id)
}

// ReadAnswer reads the answer to a request.
func ReadAnswer(ctx context.Context, s *store.Store, request int64) (Answer, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[Answer], claimAnswerSQL, request)
	if err != nil || len(found) == 0 {
		return Answer{}, err // the request is so old that maintenance has removed it
	}
	return found[0], nil
}

// RemoveRequest removes a request.
func RemoveRequest(ctx context.Context, s *store.Store, request int64) error {
	_, err := store.Rows(ctx, s, pgx.RowTo[int64], removeRequestSQL, request)
	return err
}
