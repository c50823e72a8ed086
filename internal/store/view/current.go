package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// currentJobsSQL lists the current runs of all subjects, newest first, from current_runs. If $15 is not null, it lists only the runs of
// that submitter. currentRunSQL reads the current runs of a single subject. While a job with a subject is running, both statements skip the
// rows that racing admissions left for the subject's earlier runs. See TestAdmissionStartedBeforeLastRun. The offset 0
// prevents the planner from walking over all jobs. Plan: current_runs_of_subject, or one pass over current_runs, which has one or two rows
// per subject. For each row, jobs_pkey and, unless the job is running, current_runs_one_running; a sort; the view for the listed jobs, or
// for all of them if the filter has a state, a lane or an error.
const (
	currentJobsSQL = currentRunsHead + `($2::text is null or c.kind = $2) and ($4::text is null or c.subject = $4)` + currentRunsTail
	currentRunSQL  = currentRunsHead + `c.kind = $2::text and c.subject = $4::text` + currentRunsTail

	currentRunsHead = `
select ` + jobColumns + ` from unnest(array(
	select j.id from trapeze.current_runs c cross join lateral (select * from trapeze.jobs where id = ` + latestRun + ` offset 0) j
	where `
	currentRunsTail = ` and ($5::bigint is null or j.pipeline_id = $5)
		and ($6::bigint is null or j.parent_id = $6) and ($7::timestamptz is null or j.created_at >= $7)
		and ($8::timestamptz is null or (j.created_at, j.id) < ($8, $9::bigint)) and ($11 or j.group_id is null)
		and ($15::text is null or j.submitter = $15 and j.submitter <> '')
		and (c.state = 'running' or not exists (select from trapeze.current_runs r
			where r.kind = c.kind and r.subject = c.subject and r.state = 'running'
			and (select true from trapeze.live l where l.id = r.job_id and l.state = 'running' limit 1) offset 0))
	order by j.created_at desc, j.id desc limit case when coalesce($3::text, $12::text, $13::text, $14::text) is null
		and $1::text[] is null then $10::bigint end
)) as named(job_id) cross join lateral (select * from ` + jobOf + ` one where one.id = named.job_id offset 0) job
where ($1 is null or state = any($1)) and ($3 is null or lane = $3) and ($12 is null or reason = $12)
	and ($13 is null or error_class = $13) and ($14 is null or error_code = $14)` + jobsOrdered
)

// latestRun is the id of the latest run of row c of current_runs: the job that holds the guard if it is running, or has ended; otherwise
// the job before it.
const latestRun = `case when c.state = 'ended' or (select true from trapeze.live l where l.id = c.job_id and l.state = 'running' limit 1)
		then c.job_id else c.previous_job end`

// namedRunSQL reports whether current_runs contains a run of a subject. Plan: current_runs_of_subject.
const namedRunSQL = `select true from trapeze.current_runs c where c.kind = $1 and c.subject = $2 limit 1`

// currentJobs reads a page of current runs. If the newest run for a subject was deleted or pruned, it returns the subject's newest finished
// run that still exists.
func currentJobs(ctx context.Context, s *store.Store, f job.Filter, args []any) (list []job.Job, full bool, err error) {
	args = append(slices.Clone(args), store.Some(f.Owner))
	sql := currentJobsSQL
	if f.Kind != "" && f.Subject != "" {
		sql = currentRunSQL
	}
	list, full, err = rowsWithin(ctx, s, scanJob, jobBytes, sql, args...)
	if err != nil || len(list) > 0 || f.Kind == "" || f.Subject == "" || f.Cursor != "" {
		return list, full, err
	}
	named, err := store.Rows(ctx, s, pgx.RowTo[bool], namedRunSQL, f.Kind, f.Subject)
	if err != nil || len(named) > 0 {
		return nil, false, err
	}
	last, err := lastFinished(ctx, s, f.Kind, f.Subject, f.Owner)
	if errors.Is(err, job.ErrNotFound) || err == nil && !matchesFilter(f, last) {
		return nil, false, nil
	}
	return []job.Job{last}, false, err
}

// matchesFilter reports whether j matches the rest of the filter. The caller has already matched the kind, subject and owner.
func matchesFilter(f job.Filter, j job.Job) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, j.State)) && (f.Lane == "" || f.Lane == j.Lane) && !j.CreatedAt.Before(f.Since) &&
		(f.Pipeline == 0 || f.Pipeline == j.PipelineID) && (f.Parent == 0 || j.ParentID != nil && f.Parent == *j.ParentID) &&
		equalsIfSet(f.Reason, j.Reason) && equalsIfSet(f.ErrorClass, j.ErrorClass) && equalsIfSet(f.ErrorCode, j.ErrorCode)
}

// equalsIfSet reports whether a job's value equals the filter's value or the filter has none.
func equalsIfSet[T ~string](asked T, is *T) bool { return asked == "" || is != nil && *is == asked }

// lastFinishedFor is the time limit for finding a subject's newest finished run, because no index serves that search.
const lastFinishedFor = 10 * time.Second

// lastFinished returns the newest finished job with a subject, or [job.ErrNotFound].
func lastFinished(ctx context.Context, s *store.Store, kind, subject, owner string) (job.Job, error) {
	f := job.Filter{Kind: kind, Subject: subject, Owner: owner, Children: new(true), States: []job.State{job.Succeeded, job.Failed, job.Cancelled}, Limit: 1}
	for began := time.Now(); ; {
		page, err := Jobs(ctx, s, f)
		if err != nil {
			return job.Job{}, err
		}
		if len(page.Jobs) > 0 {
			return page.Jobs[0], nil
		}
		if f.Cursor = page.Cursor; f.Cursor == "" || time.Since(began) > lastFinishedFor {
			return job.Job{}, fmt.Errorf("current run of %s for subject %q: %w", kind, subject, job.ErrNotFound)
		}
	}
}

// Current returns the current run of a subject: the running job or, if none is running, the job that ran last. If owner is not empty,
// Current considers only that submitter's jobs. If the last run was deleted or pruned, it returns the newest finished run that still
// exists, or [job.ErrNotFound].
func Current(ctx context.Context, s *store.Store, kind, subject, owner string) (job.Job, error) {
	page, err := Jobs(ctx, s, job.Filter{Kind: kind, Subject: subject, Owner: owner, Current: true, Limit: 1})
	if err == nil && len(page.Jobs) == 0 {
		err = fmt.Errorf("current run of %s for subject %q: %w", kind, subject, job.ErrNotFound)
	}
	if err != nil {
		return job.Job{}, err
	}
	return page.Jobs[0], nil
}
