package view

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// MostFailures is the maximum number of jobs that [Failures] reads.
const MostFailures = 10_000

// failuresSQL reads the jobs that failed in a period, latest failure first. Plan: done_failed_by_end backwards in each day of the period,
// stops at the limit; jobs_pkey for each job.
const failuresSQL = `
select j.id, j.kind, j.subject, d.attempt, d.finished_at, d.class, d.error from (
	select ` + failureColumns + ` from trapeze.done_failed d
	where d.finished_at >= coalesce($1::timestamptz, '-infinity') and d.finished_at <= coalesce($2::timestamptz, 'infinity')
	order by d.finished_at desc, d.id desc limit $3
) d join trapeze.jobs j on j.id = d.id
order by d.finished_at desc, d.id desc`

// ownFailuresSQL reads the newest jobs of submitter $3, and the failures of those that failed since $1. The other rows contain no failure.
// Plan: jobs_by_submitter backwards, stops at the limit; the id index of done in the days since a job was created.
const ownFailuresSQL = `
select j.id, j.kind, j.subject, j.created_at, d.attempt, d.finished_at, d.class, d.error from (
	select id, kind, subject, created_at from trapeze.jobs where submitter = $3 and submitter <> '' order by created_at desc, id desc limit $2
) j left join lateral (
	select ` + failureColumns + ` from trapeze.done_failed d
	where ` + endedSince + ` and d.finished_at >= coalesce($1::timestamptz, '-infinity') limit 1
) d on true`

const failureColumns = `d.id, d.attempt, d.finished_at, coalesce(d.error_class, '') as class, left(coalesce(nullif(d.error, ''), d.reason), 500) as error`

// Failures groups the jobs that have failed since a time, or all failed jobs if since is zero. If owner is not empty, it considers only
// that owner's jobs. It reads at most 10,000 jobs: the latest failures, or the owner's newest jobs.
func Failures(ctx context.Context, s *store.Store, since time.Time, owner string) (failures.List, error) {
	until, err := Now(ctx, s)
	if err != nil {
		return failures.List{}, err
	}
	from := store.Some(since)
	read := func() ([]failures.Job, *time.Time, error) { return failedJobs(ctx, s, from, nil) }
	if owner != "" {
		read = func() ([]failures.Job, *time.Time, error) { return ownFailedJobs(ctx, s, from, owner) }
	}
	jobs, reached, err := read()
	if err != nil {
		return failures.List{}, fmt.Errorf("read the failed jobs: %w", err)
	}
	retrying, err := retryingJobs(ctx, s, from, owner)
	if err != nil {
		return failures.List{}, err
	}
	complete := reached == nil || !reached.After(since)
	switch {
	case !complete:
		since = *reached
	case since.IsZero() && len(jobs) > 0:
		since = jobs[len(jobs)-1].FailedAt
	case since.IsZero():
		since = until
	}
	return failures.New(jobs, since, until, complete).AddRetrying(retrying, len(retrying) < mostRetrying), nil
}

// [retryingSQL] reads at most mostRetrying jobs, from the mostParked parked jobs that become due first.
const (
	mostRetrying = 1000
	mostParked   = 10_000
)

// retryingSQL reads jobs whose latest attempt failed since $1 and that are waiting for their next attempt, latest failure first. It
// considers only the $3 parked jobs that become due first, because retries become due soon. Plan: parked_for_promotion, stops at the limit;
// jobs_pkey for each; job_events_of_job backwards in the days of the run, stops at the first event.
const retryingSQL = `
select p.id, p.kind, p.subject, p.attempt, e.at, e.class, e.error from (
	select s.* from (
		select id, kind, subject, attempt, why, started_at, run_after, event_no from trapeze.parked
		where why in ('scheduled', 'retry', 'snooze') order by run_after, id limit $3
	) s where s.why = 'retry' and ($2::text is null or coalesce((select j.submitter = $2 and j.submitter <> '' from trapeze.jobs j where j.id = s.id), false))
	limit $4
) p cross join lateral (
	select e.at, coalesce(e.fields ->> 'error_class', '') as class, left(coalesce(e.message, ''), 500) as error from trapeze.job_events e
	where e.job = p.id and e.event_no <= p.event_no and e.event = 'job.retried' and e.at >= p.started_at - interval '1 day' and e.at <= p.run_after
	order by e.event_no desc limit 1
) e
where e.at >= coalesce($1::timestamptz, '-infinity') order by e.at desc, p.id desc`

// retryingJobs reads jobs that are waiting for another attempt, with the error of the latest one. If owner is not empty, it reads only that
// owner's jobs.
func retryingJobs(ctx context.Context, s *store.Store, from *time.Time, owner string) ([]failures.Job, error) {
	jobs, err := store.Rows(ctx, s, pgx.RowToStructByPos[failures.Job], retryingSQL, from, store.Some(owner), mostParked, mostRetrying)
	if err != nil {
		return nil, fmt.Errorf("read the jobs that are retried: %w", err)
	}
	for i := range jobs {
		jobs[i].Error = failures.Line(jobs[i].Error)
	}
	return jobs, nil
}

// failedJobs reads the jobs that failed in a period. If it reaches the limit before the start of the period, it also returns how far back
// it has read.
func failedJobs(ctx context.Context, s *store.Store, from, to *time.Time) (jobs []failures.Job, reached *time.Time, err error) {
	jobs, err = store.Rows(ctx, s, pgx.RowToStructByPos[failures.Job], failuresSQL, from, to, MostFailures)
	if len(jobs) == MostFailures {
		reached = &jobs[len(jobs)-1].FailedAt
	}
	for i := range jobs {
		jobs[i].Error = failures.Line(jobs[i].Error)
	}
	return jobs, reached, err
}

// ownFailedJobs reads an owner's newest jobs and returns those that failed. If there may be older jobs, it also returns the creation time
// of the oldest job that it read.
func ownFailedJobs(ctx context.Context, s *store.Store, from *time.Time, owner string) (jobs []failures.Job, reached *time.Time, err error) {
	type row struct {
		ID            int64
		Kind, Subject string
		CreatedAt     time.Time
		Attempt       *int
		FailedAt      *time.Time
		Class         *job.ErrorClass
		Error         *string
	}
	rows, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], ownFailuresSQL, from, MostFailures, owner)
	for _, r := range rows {
		if r.FailedAt != nil {
			jobs = append(jobs, failures.Job{ID: r.ID, Kind: r.Kind, Subject: r.Subject, Attempt: *r.Attempt, FailedAt: *r.FailedAt, Class: *r.Class, Error: failures.Line(*r.Error)})
		}
	}
	slices.SortFunc(jobs, func(a, b failures.Job) int { return b.FailedAt.Compare(a.FailedAt) })
	if len(rows) == MostFailures {
		reached = &rows[len(rows)-1].CreatedAt
	}
	return jobs, reached, err
}

// FailureSet returns the ids of the jobs in a set of failures. If owner is not empty, the set must be limited to that owner's jobs.
// FailureSet returns [job.ErrFailuresChanged] if the group no longer matches the set, and [job.ErrInvalid] if text does not describe a set.
func FailureSet(ctx context.Context, s *store.Store, text, owner string) ([]int64, error) {
	set, err := failures.ParseSet(text)
	if err != nil {
		return nil, err
	}
	var jobs []failures.Job
	if owner == "" {
		jobs, _, err = failedJobs(ctx, s, &set.First, &set.Last)
	} else {
		jobs, _, err = ownFailedJobs(ctx, s, &set.First, owner)
		jobs = slices.DeleteFunc(jobs, func(failed failures.Job) bool { return failed.FailedAt.After(set.Last) })
	}
	if err != nil {
		return nil, fmt.Errorf("read the set of failures %s: %w", set.Group, err)
	}
	return set.IDs(jobs)
}
