package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const pipelineColumns = `p.id, p.name, p.status, p.kind, p.last_job, p.step, p.planned, p.progress_done, p.progress_total,
	p.progress_message, p.reason, p.error, p.created_at, p.finished_at`

// pipelineSQL reads one pipeline. A job without a next step counts as a pipeline with one step. Plan: primary key lookups,
// jobs_of_pipeline.
const pipelineSQL = `
select ` + pipelineColumns + ` from ` + pipelineOf + ` p where p.id = $1
union all
select j.id, '', case when j.state in ('succeeded', 'failed', 'cancelled') then j.state else 'running' end, j.kind, j.id, j.step,
	j.planned, j.progress_done, j.progress_total, j.progress_message, j.reason, j.error, j.created_at, j.finished_at
from ` + jobOf + ` j
where j.id = $1 and j.pipeline_id = j.id and not exists (select from trapeze.pipelines p where p.id = j.id)`

// Pipeline returns the pipeline whose first job has the given id, or [job.ErrNotFound].
func Pipeline(ctx context.Context, s *store.Store, id int64) (job.Pipeline, error) {
	found, err := store.Rows(ctx, s, scanPipeline, pipelineSQL, id)
	if err != nil {
		return job.Pipeline{}, fmt.Errorf("read pipeline %d: %w", id, err)
	}
	if len(found) == 0 {
		return job.Pipeline{}, fmt.Errorf("read pipeline %d: %w", id, job.ErrNotFound)
	}
	return found[0], nil
}

// pipelinesSQL lists pipelines newest first, back to the pipeline ($7, $8). Null arguments match everything. Plan: pipelines_by_age
// backwards, to that pipeline; jobs_of_pipeline and primary key lookups for each row read; stops at the limit.
const pipelinesSQL = `
select ` + pipelineColumns + ` from ` + pipelineOf + ` p
where ($1::text[] is null or p.status = any($1)) and ($2::text is null or p.name = $2)
	and p.created_at >= coalesce($3::timestamptz, '-infinity')
	and (p.created_at, p.id) < (coalesce($4::timestamptz, 'infinity'), $5::bigint)
	and (p.created_at, p.id) >= (coalesce($7::timestamptz, '-infinity'), $8::bigint)
order by p.created_at desc, p.id desc limit $6`

// ownPipelinesSQL lists the pipelines whose first job was submitted by a given submitter since a given time. It orders them by that job's
// creation time, newest first, and pages continue from that job. It does not use the pipeline's row, which may not be created until the
// first job has finished. Plan: jobs_by_submitter for the first jobs, down to the job ($7, $8), primary key lookups and jobs_of_pipeline
// for each row read; stops at the limit.
const ownPipelinesSQL = `
select ` + pipelineColumns + ` from trapeze.jobs o join ` + pipelineOf + ` p on p.id = o.id
where o.submitter = $9 and o.submitter <> '' and ($1::text[] is null or p.status = any($1)) and ($2::text is null or p.name = $2)
	and o.created_at >= coalesce($3::timestamptz, '-infinity')
	and (o.created_at, o.id) < (coalesce($4::timestamptz, 'infinity'), $5::bigint)
	and (o.created_at, o.id) >= (coalesce($7::timestamptz, '-infinity'), $8::bigint)
order by o.created_at desc, o.id desc limit $6`

const (
	// lookedPipelinesSQL is like lookedSQL, but returns the pipeline at which a part of a walk ends. Plan: pipelines_by_age backwards,
	// index only.
	lookedPipelinesSQL = `
select created_at, id from trapeze.pipelines where ` + lookedFrom + ` order by created_at desc, id desc offset $4 limit 1`
	// madeSQL reads the time at which a job was created. Plan: jobs_pkey.
	madeSQL = `select created_at from trapeze.jobs where id = $1`
)

// PipelineFilter selects pipelines. Zero fields match everything.
type PipelineFilter struct {
	Statuses []job.Status
	Name     string
	Since    time.Time
	Owner    string // submitter of the pipelines
	Limit    int    // the default is 50, the maximum 1000
	Cursor   string // the cursor returned with the previous page
}

// PipelinePage is one page of pipelines, newest first. Like a [Page], it may contain fewer pipelines than the limit if their plans are
// large or if only a few of many pipelines match.
type PipelinePage struct {
	Pipelines []job.Pipeline
	Cursor    string    // cursor for the next page, or empty on the last page
	Searched  time.Time // if the search stopped early, how far back it has read; otherwise zero
}

// Pipelines returns a page of pipelines, newest first.
func Pipelines(ctx context.Context, s *store.Store, f PipelineFilter) (PipelinePage, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 50
	}
	limit = min(limit, 1000)
	at, before, err := pageCursor(f.Cursor)
	if err != nil {
		return PipelinePage{}, err
	}
	args := []any{store.Texts(f.Statuses), store.Some(f.Name), store.Some(f.Since), at, before, limit}
	list, full, found, err := rarePipelines(ctx, s, f, args, at, limit)
	var until *walkEnd
	if err == nil && !found {
		list, full, until, err = walkPipelines(ctx, s, args, f.Owner, limit)
	}
	if err != nil {
		return PipelinePage{}, fmt.Errorf("list pipelines: %w", err)
	}
	page := PipelinePage{Pipelines: list}
	switch {
	case until != nil:
		page.Cursor, page.Searched = pageAfter(*until.At, until.ID), *until.At
	case full || len(list) == limit:
		last := list[len(list)-1]
		page.Cursor = pageAfter(last.CreatedAt, last.ID)
	}
	return page, nil
}

// walkPipelines reads a page in parts, with the arguments of pipelinesSQL (see [walk]). If the filter has an owner, it uses
// ownPipelinesSQL.
func walkPipelines(ctx context.Context, s *store.Store, args []any, owner string, limit int) (list []job.Pipeline, full bool, until *walkEnd, err error) {
	sql, ends, whose := pipelinesSQL, lookedPipelinesSQL, []any(nil)
	from := walkEnd{args[3].(*time.Time), args[4].(int64)}
	if owner != "" {
		sql, ends, whose = ownPipelinesSQL, ownLookedSQL, []any{owner}
		// An owner's list is ordered by the pipelines' first jobs, but the cursor contains the creation time of the pipeline.
		made, err := store.Rows(ctx, s, pgx.RowTo[time.Time], madeSQL, from.ID)
		if err != nil {
			return nil, false, nil, err
		}
		if len(made) > 0 {
			from.At = &made[0]
		}
	}
	return walk(s.SearchFor, limit, from, pipelineBytes, func(from walkEnd, n int) ([]walkEnd, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[walkEnd], ends, append([]any{args[2], from.At, from.ID, n}, whose...)...)
	}, func(from walkEnd, down *walkEnd, limit int) ([]job.Pipeline, bool, error) {
		args[3], args[4], args[5] = from.At, from.ID, limit
		return rowsWithin(ctx, s, scanPipeline, pipelineBytes, sql, append(append(args[:6:6], down.bounds()...), whose...)...)
	})
}

func scanPipeline(row pgx.CollectableRow) (p job.Pipeline, err error) {
	var planned []byte
	var progress job.Progress
	err = row.Scan(&p.ID, &p.Name, &p.Status, &p.Kind, &p.LastJob, &p.Step, &planned, &progress.Done, &progress.Total,
		&progress.Message, &p.Reason, &p.Error, &p.CreatedAt, &p.FinishedAt)
	p.Planned = planned
	if progress != (job.Progress{}) {
		p.Progress = &progress
	}
	return p, err
}

// spineSQL reads the jobs in a pipeline that are outside any fan-out, in order and without their plans. Each plan contains all later steps,
// so the plans in a long chain may add up to gigabytes. Plan: jobs_of_pipeline; primary key lookups, the id index of done.
const spineSQL = `
select ` + columnsToArgs + `null::json` + columnsFromResult + ` from ` + jobOf + ` job where id = any(array(
	select j.id from trapeze.jobs j where j.id = $1
	union all
	select j.id from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = 0 and coalesce(j.child_no, 0) = 0 and j.step > 0
)) order by step`

// Spine returns the jobs in a pipeline that are outside any fan-out, in order. The jobs carry no plans, because the pipeline itself carries
// the plan. After the first 8 MiB, arguments and results are also omitted.
func Spine(ctx context.Context, s *store.Store, id int64) ([]job.Job, error) {
	list, err := store.Rows(ctx, s, leanJobs(), spineSQL, id)
	if err != nil {
		return nil, fmt.Errorf("read the jobs of pipeline %d: %w", id, err)
	}
	return list, nil
}

// branchStatesSQL counts a fan-out's branches by the state of their last jobs. Plan: jobs_of_pipeline for (pipeline, group); primary key
// lookups, the id index of done.
const branchStatesSQL = `
select v.state, count(*)::int, min(v.started_at), max(v.finished_at)
from (` + store.BranchTails + `) b join ` + jobOf + ` v on v.id = b.id
group by v.state`

// BranchState is the number of branches of a fan-out whose last job is in the given state.
type BranchState struct {
	State    job.State
	Branches int
	Began    *time.Time // when the first of these jobs started
	Ended    *time.Time // when the last of these jobs finished
}

// BranchStates counts a fan-out's branches by the state of their last jobs.
func BranchStates(ctx context.Context, s *store.Store, pipeline, id int64) ([]BranchState, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[BranchState], branchStatesSQL, pipeline, id)
	if err != nil {
		return nil, fmt.Errorf("count the children of job %d: %w", id, err)
	}
	return list, nil
}

// branchJobsSQL lists the last jobs of a fan-out's branches that are in one of the given states. Plan: as for branchStatesSQL.
const branchJobsSQL = `
select ` + jobColumns + ` from ` + jobOf + ` job
where id = any(array(select b.id from (` + store.BranchTails + `) b)) and state = any($3::text[])
order by array_position($3::text[], state), child_no limit $4`

// BranchJobs returns the last jobs of a fan-out's branches that are in one of the given states. They are ordered by the given states, then
// by position in the fan-out. After the first 8 MiB, arguments, results and plans are omitted.
func BranchJobs(ctx context.Context, s *store.Store, pipeline, id int64, states []job.State, limit int) ([]job.Job, error) {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	list, err := store.Rows(ctx, s, leanJobs(), branchJobsSQL, pipeline, id, names, limit)
	if err != nil {
		return nil, fmt.Errorf("read the children of job %d: %w", id, err)
	}
	return list, nil
}

// branchPageSQL lists the last job of each branch of a fan-out that comes after a given position, in order. Plan: as for branchStatesSQL.
const branchPageSQL = `
select ` + jobColumns + ` from ` + jobOf + ` job
where id = any(array(select b.id from (` + store.BranchTails + `) b)) and ($3::text is null or state = $3) and child_no > $4
order by child_no limit $5`

// BranchPage returns the last job of each branch of a fan-out that comes after a given position. An empty state means any state. After the
// first 8 MiB, arguments, results and plans are omitted.
func BranchPage(ctx context.Context, s *store.Store, pipeline, id int64, state job.State, after, limit int) ([]job.Job, error) {
	list, err := store.Rows(ctx, s, leanJobs(), branchPageSQL, pipeline, id, store.Some(string(state)), after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the children of job %d: %w", id, err)
	}
	return list, nil
}
