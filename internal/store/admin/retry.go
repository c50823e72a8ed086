package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// retryStateSQL locks the done rows of jobs, so that concurrent retries run one at a time. It also locks their rows in jobs, so that the
// jobs are not pruned in the meantime. For each job, it returns whether the job fanned out to children, and the fan-out that the job is a
// branch of, if any. Plan: the id index of done and primary key lookups, one row per job.
const retryStateSQL = `
select d.id, d.state, ` + hasChildren + `, j.pipeline_id, j.group_id, j.step, j.erased_at is not null or coalesce((select true from trapeze.jobs b
	where b.pipeline_id = j.pipeline_id and coalesce(b.group_id, 0) = j.parent_id and b.step > 0 and b.erased_at is not null limit 1), false)
from trapeze.done d join trapeze.jobs j on j.id = d.id
where d.id = any($1::bigint[]) order by d.id for update of d, j`

// hasChildren is an SQL condition that is true if job d fanned out to children. It is false for a deferred job, which runs again because
// only its handler can arrange for its parts to be completed. The condition avoids exists, because with exists in the select list
// PostgreSQL 18 would hash whole tables.
const hasChildren = `coalesce((select true from trapeze.fan_outs f where f.id = d.id limit 1)
	and (select true from trapeze.deferrals f where f.id = d.id limit 1) is null, false)`

// endedBranchesSQL locks the last jobs in the branches of fan-out $2, so that none of them is pruned in the meantime. For each, it returns
// whether the job succeeded, whether it is impaired, and whether it fanned out to children. Plan: jobs_of_pipeline for (pipeline, group);
// primary key lookups.
const endedBranchesSQL = `
select d.id, d.state = 'succeeded', k.impaired or coalesce((select f.failed + f.impaired > 0 from trapeze.fan_outs f where f.id = d.id limit 1), false), ` + hasChildren + ` from (` + store.BranchTails + `) b
join trapeze.done d on d.id = b.id join trapeze.jobs k on k.id = b.id
where k.erased_at is null order by d.id for update of k`

// openCountSQL locks a fan-out that has ended, and returns the number of its branches and the number of those that have not ended. Plan:
// fan_outs_pkey.
const openCountSQL = `select branches, open from trapeze.fan_outs where id = $1 and ended for update`

// retryJobsSQL makes failed and cancelled jobs pending again, in their next epoch: they are parked as due, and promoted. It keeps the fence, and resets attempts and crashes. The
// caller has reserved the unique key. The key is held only until the job is claimed, because it could otherwise suppress a newer
// submission. If the lane has been deleted, the job moves to the lane of its kind. The event that ended the job contains only the first 500
// characters of the error, so the retry's event keeps the full text of a longer one.
//
// A job needs approval if its lane requires approval or if the job was awaiting approval before. A job that has already run needs approval
// only if its arguments are replaced ($3), or if it was last cancelled while it was awaiting approval. In both cases, its current arguments
// have not been approved. A step that keeps its arguments needs approval only if it was awaiting approval before. Plan: the id index of done; primary
// key lookups; job_events_of_job, backwards to the last event that left the approval state; inserts.
const retryJobsSQL = `
with gone as (
	delete from trapeze.done where id = any($1::bigint[]) and state in ('failed', 'cancelled') returning *
), back as materialized (
	select g.id, g.started_at, g.fence, g.claim_xid, g.state, g.event_no + 1 as event_no, g.epoch + 1 as epoch, g.priority, g.error,
		case when j.unique_key is not null then 'pending' end as unique_while, coalesce(case when n.name is not null then g.lane end, k.lane, 'default') as lane, j.kind, j.subject, j.key,
		a.to_state is not distinct from 'cancelled' or (g.fence = 0 or $3::boolean)
			and (coalesce(n.requires_approval and (j.parent_id is null or $3::boolean), false) or a.to_state is not null) as asks
	from gone g join trapeze.jobs j on j.id = g.id
	left join lateral trapeze.lane_rules(g.lane) n on true left join trapeze.lane_kinds k on k.kind = j.kind
	left join lateral (
		select e.to_state from trapeze.job_events e where e.job = g.id and e.from_state = 'awaiting_approval' order by e.event_no desc limit 1
	) a on true
), again as (
	insert into trapeze.parked (id, why, run_after, started_at, fence, event_no, epoch, priority, unique_while, lane, kind, subject, key)
	select id, case when asks then 'approval' else 'scheduled' end, now(), started_at, fence, event_no, epoch, priority, unique_while, lane, kind,
		subject, key from back
), events as (
	insert into trapeze.job_events (job, event_no, fence, claim_xid, from_state, to_state, event, actor, fields)
	select id, event_no, fence, claim_xid, state, case when asks then 'awaiting_approval' else 'pending' end, 'job.operator_retry', $2,
		json_strip_nulls(json_build_object('epoch', epoch, 'error', case when length(error) > 500 then error end))
	from back
)
select id from back where not asks`

// reopenSQL makes a job wait again for the branches that are being retried. Plan: as for retryJobsSQL, one row.
const reopenSQL = `
with gone as (
	delete from trapeze.done where id = $1 and state in ('failed', 'cancelled') returning *
), waits as (
	insert into trapeze.parked (id, why, started_at, fence, event_no, epoch, attempt, crashes, priority, lane, kind, subject, key)
	select g.id, 'children', g.started_at, g.fence, g.event_no + 1, g.epoch + 1, g.attempt, g.crashes, g.priority, g.lane, j.kind,
		j.subject, j.key
	from gone g join trapeze.jobs j on j.id = g.id
), fan_out as (
	update trapeze.fan_outs f set ended = false, open = $3, failed = 0, impaired = $4 from gone g where f.id = g.id
), event as (
	insert into trapeze.job_events (job, event_no, fence, claim_xid, from_state, to_state, event, actor, fields)
	select id, event_no + 1, fence, claim_xid, state, 'waiting', 'job.operator_retry', $2,
		json_build_object('epoch', epoch + 1, 'branches', $3::int) from gone
)
select id from gone`

// undeferSQL deletes the waiting state of deferred jobs and their failed parts. Successful parts still count when the job waits again.
// Plan: primary key lookups.
const undeferSQL = `
with failed as (
	delete from trapeze.parts where id = any($1::bigint[]) and error is not null
)
delete from trapeze.fan_outs where id = any($1::bigint[])`

// newArgsSQL changes a retried job's arguments. Plan: jobs_pkey.
const newArgsSQL = `update trapeze.jobs set args = $2::json where id = $1`

// continuing lists the jobs that continue after a retry.
type continuing struct{ pending, waiting []int64 }

// reopen makes a job wait again for the branches that did not succeed, and adds the jobs from which the pipeline continues to on.
func reopen(ctx context.Context, s *store.Store, tx pgx.Tx, pipeline, id int64, actor string, on *continuing) error {
	type branch struct {
		ID                             int64
		Succeeded, Impaired, FannedOut bool
	}
	type count struct{ Branches, Open int }
	found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[count], s.In(openCountSQL), []any{id})
	if err != nil {
		return err
	}
	if len(found) == 0 || found[0].Open > 0 {
		return fmt.Errorf("children of job %d: %w", id, job.ErrStillEnding)
	}
	failed, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[branch], s.In(endedBranchesSQL), []any{pipeline, id})
	if err != nil {
		return err
	}
	if len(failed) < found[0].Branches {
		live, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(openBranchesSQL), []any{pipeline, id, 1})
		if err != nil {
			return err
		}
		if len(live) > 0 { // a branch has already been retried separately
			return fmt.Errorf("child %d of job %d: %w", live[0], id, job.ErrStillEnding)
		}
		return fmt.Errorf("%d of %d children of job %d: %w", found[0].Branches-len(failed), found[0].Branches, id, job.ErrPruned)
	}
	impaired := 0 // includes branches that were retried separately and finished after the fan-out
	failed = slices.DeleteFunc(failed, func(b branch) bool {
		if b.Succeeded && b.Impaired {
			impaired++
		}
		return b.Succeeded
	})
	if _, err := store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(reopenSQL), []any{id, actor, len(failed), impaired}); err != nil {
		return err
	}
	on.waiting = append(on.waiting, id)
	for _, b := range failed {
		if !b.FannedOut {
			on.pending = append(on.pending, b.ID)
		} else if err := reopen(ctx, s, tx, pipeline, b.ID, actor, on); err != nil {
			return err
		}
	}
	return nil
}

// rejoinSQL makes a fan-out that has not ended wait again for one of its failed branches. Plan: fan_outs_pkey.
const rejoinSQL = `
with f as materialized (
	select id, open, ended, fail_fast from trapeze.fan_outs where id = $1 for update
), waits as (
	update trapeze.fan_outs w set open = w.open + 1, failed = w.failed - 1
	from f where w.id = f.id and not f.ended and f.open > 0 and not f.fail_fast
	returning w.id
)
select f.id in (select id from waits) or f.ended and f.open = 0 from f`

// keysOfSQL lists the unique keys that jobs were submitted with. Plan: jobs_pkey.
const keysOfSQL = `select id, kind, unique_key from trapeze.jobs where id = any($1::bigint[]) and unique_key is not null`

// Retried is the result of retrying jobs.
type Retried struct {
	Again   []int64         // jobs that are pending again
	Refused map[int64]error // jobs that could not be retried

	first endedJob // the first of the finished jobs
}

// endedJob is a job that is about to be retried.
type endedJob struct {
	ID        int64
	State     job.State
	FannedOut bool
	Pipeline  int64
	Group     *int64
	Step      int
	Erased    bool // whether the job, or a child whose result it reads, was erased
}

// Retry makes a failed or cancelled job pending again, in its next epoch. If args is not nil, it replaces the job's arguments. A job that
// fanned out waits again for the branches that did not succeed, which are retried in the same way. A deferred job runs again, and its
// successful parts still count. A job whose current arguments have not been approved must be approved first.
//
// If the retried job is a branch whose fan-out has not ended, the fan-out waits for the branch again. Otherwise, the branch runs
// independently and is not counted again. Retry returns the jobs that are pending again.
//
// Retry returns [job.ErrNotFound] if the job does not exist, [job.ErrNotFailed] if it has not failed or been cancelled,
// [job.ErrStillEnding] if the job's fan-out, or the one to which it belongs, is still ending, [job.ErrPruned] if branches have been pruned
// or data was erased, and [job.ErrKeyHeld] if another job holds a unique key. It returns [job.ErrInvalid] if args is given for a job that
// fanned out, because such a job does not run again.
func Retry(ctx context.Context, s *store.Store, id int64, args json.RawMessage, actor string) (again []int64, err error) {
	again, err = retry(ctx, s, id, args, actor, "job.retry", func(endedJob) string { return jobTarget(id) })
	switch {
	case errors.Is(err, job.ErrNotFailed): // the error names the job
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("retry job %d: %w", id, err)
	}
	return again, nil
}

// RetryPipeline retries a pipeline by retrying the last job of its spine. See [Retry].
func RetryPipeline(ctx context.Context, s *store.Store, last int64, args json.RawMessage, actor string) (again []int64, err error) {
	again, err = retry(ctx, s, last, args, actor, "pipeline.retry", func(e endedJob) string { return pipelineTarget(e.Pipeline) })
	return again, text.Wrap(err, "retry the pipeline of job %d", last)
}

func retry(ctx context.Context, s *store.Store, id int64, args json.RawMessage, actor, action string, target func(endedJob) string) ([]int64, error) {
	var r Retried
	err := s.Tx(ctx, func(tx pgx.Tx) (err error) {
		if r, err = retryIn(ctx, s, tx, []int64{id}, args, actor); err != nil {
			return err
		}
		if why := r.Refused[id]; why != nil {
			return why
		}
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: action, Target: target(r.first), Before: map[string]any{"state": r.first.State},
			After: map[string]any{"jobs": len(r.Again), "other_args": args != nil}})
	})
	if errors.Is(err, job.ErrNotFailed) {
		err = notFailed(ctx, s, id, err)
	}
	return r.Again, err
}

// notFailed returns an error that explains why a job was not retried. The error contains the job's epoch. A caller that repeats a retry
// whose reply was lost can find out from the epoch whether the first call succeeded.
func notFailed(ctx context.Context, s *store.Store, id int64, err error) error {
	j, look := view.Job(ctx, s, id)
	if look != nil {
		return look
	}
	is := "is " + string(j.State)
	if j.State == job.Succeeded {
		is = "succeeded"
	}
	if j.Epoch > 1 {
		is += fmt.Sprintf(", in epoch %d", j.Epoch)
	}
	return fmt.Errorf("job %d %s: %w", id, is, err)
}

// RetryMany is like [Retry], but retries many jobs in one transaction. It skips jobs that cannot be retried. It writes the audit entry d if
// d is not nil.
func RetryMany(ctx context.Context, s *store.Store, ids []int64, actor string, d *AuditEntry) (r Retried, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) (err error) {
		if r, err = retryIn(ctx, s, tx, ids, nil, actor); err != nil || d == nil {
			return err
		}
		return auditIn(ctx, s, tx, *d)
	})
	return r, text.Wrap(err, "retry %d jobs", len(ids))
}

// retryIn retries jobs in a transaction. Jobs that wait for others come first, because retrying a fan-out includes retrying its branches.
func retryIn(ctx context.Context, s *store.Store, tx pgx.Tx, ids []int64, args json.RawMessage, actor string) (r Retried, err error) {
	ends, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[endedJob], s.In(retryStateSQL), []any{ids})
	if err != nil {
		return r, err
	}
	r.Refused = map[int64]error{}
	for _, id := range ids {
		r.Refused[id] = job.ErrNotFailed // cleared below if the job can be retried
	}
	slices.SortStableFunc(ends, func(a, b endedJob) int { return cmp.Compare(a.Step, b.Step) })
	if len(ends) > 0 {
		r.first = ends[0]
	}
	var alone []int64
	on := continuing{}
	for _, e := range ends {
		switch {
		case slices.Contains(on.waiting, e.ID), slices.Contains(on.pending, e.ID):
			delete(r.Refused, e.ID)
		case e.State == job.Succeeded:
		case e.Erased:
			r.Refused[e.ID] = fmt.Errorf("job %d or one of its children was erased: %w", e.ID, job.ErrPruned)
		case e.Group == nil && !e.FannedOut:
			alone = append(alone, e.ID)
		default:
			var with continuing
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) { // a savepoint, so that the job is retried completely or not at all
				with, err = retryLinked(ctx, s, tx, e, args, actor)
				return err
			})
			switch {
			case isRefusal(err):
				r.Refused[e.ID] = err
				continue
			case err != nil:
				return r, err
			}
			delete(r.Refused, e.ID)
			on.pending, on.waiting = append(on.pending, with.pending...), append(on.waiting, with.waiting...)
		}
	}
	free, err := retakeKeys(ctx, s, tx, alone)
	if err != nil {
		return r, err
	}
	for _, id := range alone {
		if delete(r.Refused, id); !slices.Contains(free, id) {
			r.Refused[id] = job.ErrKeyHeld
		}
	}
	if free, err = pendAgain(ctx, s, tx, free, args, actor); err != nil {
		return r, err
	}
	r.Again = append(on.pending, free...)
	return r, nil
}

// retryLinked retries a job that waits for other jobs or that other jobs wait for.
func retryLinked(ctx context.Context, s *store.Store, tx pgx.Tx, e endedJob, args json.RawMessage, actor string) (on continuing, err error) {
	if e.Group != nil {
		may, err := store.QueryPinned(ctx, tx, pgx.RowTo[bool], s.In(rejoinSQL), []any{*e.Group})
		if err != nil {
			return on, err
		}
		if len(may) == 1 && !may[0] {
			return on, fmt.Errorf("the children of job %d: %w", *e.Group, job.ErrStillEnding)
		}
	}
	switch {
	case e.FannedOut && args != nil:
		return on, fmt.Errorf("%w: job %d is a fan-out: its children run again with their own arguments", job.ErrInvalid, e.ID)
	case e.FannedOut:
		err = reopen(ctx, s, tx, e.Pipeline, e.ID, actor, &on)
	default:
		on.pending = []int64{e.ID}
	}
	if err != nil {
		return on, err
	}
	free, err := retakeKeys(ctx, s, tx, on.pending)
	if err != nil {
		return on, err
	}
	if len(free) < len(on.pending) {
		return on, fmt.Errorf("%[3]d of %[1]d jobs to retry with job %[2]d are not retriable: %[4]w", len(on.pending), e.ID, len(on.pending)-len(free), job.ErrKeyHeld)
	}
	retried := on.pending
	on.pending, err = pendAgain(ctx, s, tx, retried, args, actor)
	on.waiting = append(on.waiting, without(retried, on.pending)...) // the others await approval
	return on, err
}

// isRefusal reports whether an error concerns only the job that could not be retried.
func isRefusal(err error) bool {
	return errors.Is(err, job.ErrStillEnding) || errors.Is(err, job.ErrPruned) || errors.Is(err, job.ErrKeyHeld) ||
		errors.Is(err, job.ErrInvalid)
}

// retakeKeys reserves jobs' unique keys again. It returns the jobs that have no key or whose key could be reserved.
func retakeKeys(ctx context.Context, s *store.Store, tx pgx.Tx, ids []int64) (free []int64, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	type keyed struct {
		ID        int64
		Kind, Key string
	}
	found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[keyed], s.In(keysOfSQL), []any{ids})
	if err != nil {
		return nil, err
	}
	var wanting []store.NewJob
	held := map[int64]bool{}
	for _, k := range found {
		wanting, held[k.ID] = append(wanting, store.NewJob{ID: k.ID, Kind: k.Kind, UniqueKey: &k.Key}), true
	}
	if wanting, err = store.ReserveKeys(ctx, s, tx, wanting); err != nil {
		return nil, err
	}
	for _, n := range wanting {
		delete(held, n.ID)
	}
	for _, id := range ids {
		if !held[id] {
			free = append(free, id)
		}
	}
	return free, nil
}

// pendAgain makes finished jobs pending again. If args is not nil, there must be a single job, whose arguments it replaces. The result does
// not include jobs that must be approved first.
func pendAgain(ctx context.Context, s *store.Store, tx pgx.Tx, ids []int64, args json.RawMessage, actor string) (pending []int64, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if args != nil {
		if _, err := tx.Exec(ctx, s.In(newArgsSQL), ids[0], string(args)); err != nil {
			return nil, err
		}
	}
	if _, err := tx.Exec(ctx, s.In(undeferSQL), ids); err != nil {
		return nil, err
	}
	return store.QueryPinned(ctx, tx, pgx.RowTo[int64], s.In(retryJobsSQL), []any{ids, actor, args != nil})
}
