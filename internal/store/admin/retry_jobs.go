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
	"github.com/trapeze-run/trapeze/job"
)

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
	if err != nil {
		return nil, fmt.Errorf("retry the pipeline of job %d: %w", last, err)
	}
	return again, nil
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
// whose reply was lost can tell from the epoch whether the first call succeeded.
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
	if err != nil {
		return Retried{}, fmt.Errorf("retry %d jobs: %w", len(ids), err)
	}
	return r, nil
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
			r.Refused[e.ID] = errErased(e.ID)
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
