package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// FanOut describes the branches that a claim waits for, which are either child jobs or parts completed from outside.
type FanOut struct {
	Lease    job.Lease
	Started  time.Time // when the handler started
	Children []NewJob  // with their ids and branches already set
	Parts    int       // number of parts to be completed from outside; if positive, there are no children
	FailFast bool
	Outcome  job.OutcomeStatus
	Result   json.RawMessage // nil if there is none
	Plan     json.RawMessage // the remaining steps, as []job.Step; nil if there are none
	Pipeline *string         // see [NewJob]
}

// lockDeferralSQL prevents parts from being completed while their job begins to wait, because a part completed at that moment would never
// be counted. If the job waits for children instead, revokeDeferralSQL and revokePartsSQL delete its token and the parts completed with it.
// Plan: deferrals_pkey; parts_pkey.
var (
	lockDeferralSQL   = newStatement(`select id from trapeze.deferrals where id = @id for update`)
	revokeDeferralSQL = newStatement(`delete from trapeze.deferrals where id = @id`)
	revokePartsSQL    = newStatement(`delete from trapeze.parts where id = @id`)
)

// fanOutSQL parks a claim until its branches have ended. Parts that have already been completed are counted. Plan: Index Scan on live_pkey
// and subjects_by_subject, one row each; parts_pkey.
var fanOutSQL = newStatement(with(fanOutGone, fanOutParked, fanOutRow, fanOutPipeline, fanOutGuard, fanOutEvent), `
select open = 0 from fan_out`)

const (
	// fanOutGone deletes the claim from live, unless a cancel was requested. Plan: live_pkey, one row.
	fanOutGone = `gone as (
	delete from trapeze.live where id = @id and fence = @fence and pod = @pod and not cancel_requested
	returning *
)`

	// fanOutParked parks the job that gone deleted.
	fanOutParked = `waits as (
	insert into trapeze.parked (id, why, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated, unique_while,
		lane, kind, subject, key)
	select id, 'children', coalesce(started_at, @started::timestamptz), fence, event_no + 1, epoch, attempt, crashes, priority, isolated, unique_while, lane,
		kind, subject, key from gone
)`

	// fanOutRow inserts the job's fan-out. It subtracts the parts that have already been completed. Plan: parts_pkey.
	fanOutRow = `fan_out as (
	insert into trapeze.fan_outs (id, fence, branches, open, failed, fail_fast, outcome, result, plan)
	select g.id, g.fence, @branches::int, greatest(@branches::int - p.done, 0), p.failed, @fail_fast, @outcome, @result::json, @plan::json
	from gone g cross join (select count(*)::int as done, count(error)::int as failed from trapeze.parts where id = @id) p
	returning open
)`

	// fanOutPipeline inserts the name of the job's pipeline unless the name is already stored.
	fanOutPipeline = `named as (
	insert into trapeze.pipelines (id, name) select @id, @pipeline::text from gone where @pipeline::text is not null on conflict (id) do nothing
)`

	// fanOutGuard frees the guard of the job's subject. Plan: subjects_by_subject, one row.
	fanOutGuard = `freed_guard as (
	update trapeze.subjects c set state = 'free' from gone g
	where g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'held'
)`

	fanOutEvent = `event as (
	insert into trapeze.job_events (job, event_no, claim_xid, fence, pod, from_state, to_state, event, actor, fields)
	select id, event_no + 1, claim_xid, fence, pod, 'running', 'waiting', 'job.waiting', 'handler',
		json_build_object('branches', @branches::int) from gone
)`
)

// FanOut parks a claim until its branches have ended, and inserts the children. It runs in the caller's transaction, which must do nothing
// else and must then commit. A child whose unique key is taken is not inserted; the job that holds the key does the work. empty reports
// whether no branch is open.
//
// It returns [ErrNoToken] if the job waits for parts that cannot be completed.
//
// FanOut does not settle the fan-out; other statements do that. When no branch is open, or when one has failed and the fan-out fails fast,
// [Store.EndWaiting] must end the job. If the job ends before its branches, they must be cancelled. [Store.OffBalance] lists the fan-outs
// for which either of these is still outstanding.
func (s *Store) FanOut(ctx context.Context, tx pgx.Tx, f FanOut) (empty bool, err error) {
	fail := func(err error) (bool, error) { return false, fmt.Errorf("fan out job %d: %w", f.Lease.JobID, err) }
	children, err := ReserveKeys(ctx, s, tx, f.Children)
	if err != nil {
		return fail(err)
	}
	if len(children) > 0 {
		err = EnqueueManyIn(ctx, s, tx, children)
	}
	if err != nil {
		return fail(err)
	}
	issued, err := settleDeferral(ctx, s, tx, f.Lease.JobID, len(f.Children) > 0)
	if err != nil {
		return fail(err)
	}
	found, err := runIn(ctx, s, tx, pgx.RowTo[bool], fanOutSQL, args{{"id", f.Lease.JobID}, {"fence", f.Lease.Fence}, {"pod", f.Lease.Pod},
		{"branches", len(children) + f.Parts}, {"fail_fast", f.FailFast}, {"outcome", string(f.Outcome)}, {"result", text(f.Result)},
		{"plan", text(f.Plan)}, {"pipeline", f.Pipeline}, {"started", Some(f.Started)}})
	if err != nil {
		return fail(err)
	}
	if len(found) == 0 {
		return fail(job.ErrLeaseLost)
	}
	if f.Parts > 0 && !issued {
		return fail(ErrNoToken)
	}
	return found[0], nil
}

// ErrNoToken rejects an outcome with parts of a job whose token no attempt has asked for.
var ErrNoToken = errors.New("call Job.Token before returning Deferred: its parts cannot be completed without the token")

// settleDeferral locks a job's token, and reports whether the job has one. If revoke is true, which means that the job waits for children,
// it deletes the token and the parts instead.
func settleDeferral(ctx context.Context, s *Store, tx pgx.Tx, id int64, revoke bool) (issued bool, err error) {
	if !revoke {
		locked, err := do(ctx, s, tx, lockDeferralSQL, args{{"id", id}})
		return locked > 0, err
	}
	revoked, err := do(ctx, s, tx, revokeDeferralSQL, args{{"id", id}})
	if err == nil && revoked > 0 {
		_, err = do(ctx, s, tx, revokePartsSQL, args{{"id", id}})
	}
	return false, err
}

// CountBranches subtracts branches that have just ended from the open branches of their fan-outs, and marks the fan-outs whose waiting jobs
// have just ended. It reads the CTEs branches(group, state, impaired) and parents(id). It locks the rows of fan_outs in id order, after
// those of live and parked. due reports whether a fan-out must be settled; see [Store.FanOut].
//
// When a job that waits for parts ends, its number of open branches becomes 0, because there is nothing to cancel. A branch that ends after
// its fan-out is complete is not counted again, because an operator has retried that branch separately.
//
// Plan: fan_outs_pkey, one row per fan-out; deferrals_pkey, one row per job in parents.
const CountBranches = `changes as materialized (
	select id, sum(ended)::int as ended, sum(failed)::int as failed, sum(impaired)::int as impaired, bool_or(over) as over
	from (
		select b.of_group as id, 1 as ended, (b.state <> 'succeeded')::int as failed,
			(b.state = 'succeeded' and b.was_impaired)::int as impaired, false as over
		from branches as b(of_group, state, was_impaired)
		union all
		select id, 0, 0, 0, true from parents
	) c group by id
), weighed as materialized (
	select f.id from changes c join trapeze.fan_outs f on f.id = c.id order by f.id for update of f
), counted as (
	update trapeze.fan_outs f set open = case when c.over and (select true from trapeze.deferrals d where d.id = f.id limit 1)
			then 0 else f.open - c.ended end,
		failed = f.failed + c.failed, impaired = f.impaired + c.impaired,
		ended = f.ended or c.over
	from changes c where f.id = c.id and f.id in (select id from weighed) and not (f.ended and f.open = 0)
	returning f.id, ` + offBalance + ` as due
)`

// offBalance is the condition that a fan-out must be settled. The fan_outs_off_balance index has the same condition.
const offBalance = `((f.open = 0) <> f.ended or (f.fail_fast and f.failed > 0 and not f.ended))`

const (
	// FailedBranches selects the branches of the jobs in the gone CTE, all of which count as failed.
	FailedBranches = `branches as (
	select j.group_id, 'failed', false from gone g join trapeze.jobs j on j.id = g.id where j.group_id is not null
)`
	NoParents = `parents as (select null::bigint as id where false)`
)

// BranchTails selects the last job of each branch of the fan-out $2 in the pipeline $1.
const BranchTails = `
	select distinct on (coalesce(j.group_id, 0), coalesce(j.child_no, 0)) j.id, j.child_no, j.kind, j.subject, j.impaired
	from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and j.step > 0
	order by coalesce(j.group_id, 0), coalesce(j.child_no, 0), j.step desc`

// tokenSQL stores the token of a job that is completed from outside. It keeps an existing token, so that a token handed out by an earlier
// attempt stays valid. Plan: Index Scan on live_pkey, one row.
//
// #nosec G101 -- the token is an argument
var tokenSQL = newStatement(`
insert into trapeze.deferrals (id, token)
select id, @token from trapeze.live where id = @id and fence = @fence and pod = @pod
on conflict (id) do update set token = deferrals.token
returning token`)

// Token stores a token for a job, or returns the existing one. It returns [job.ErrLeaseLost] if the pod no longer holds the claim.
func (s *Store) Token(ctx context.Context, l job.Lease, token string) (string, error) {
	found, err := run(ctx, s, pgx.RowTo[string], tokenSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"token", token}})
	if err != nil {
		return "", fmt.Errorf("store the token of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("store the token of job %d: %w", l.JobID, s.Lost(ctx, l))
	}
	return found[0], nil
}
