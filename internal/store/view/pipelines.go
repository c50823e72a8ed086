package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
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
	return Row(ctx, s, fmt.Sprintf("read pipeline %d", id), scanPipeline, pipelineSQL, id)
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
	limit := PageSize(f.Limit)
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
		return rowsWithin(ctx, s, scanPipeline, pipelineBytes, sql, slices.Concat(args, down.bounds(), whose)...)
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
func Spine(ctx context.Context, s *store.Store, id int64) ([]job.JobRow, error) {
	return Rows(ctx, s, fmt.Sprintf("read the jobs of pipeline %d", id), leanJobs(), spineSQL, id)
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
	return Rows(ctx, s, fmt.Sprintf("count the children of job %d", id), pgx.RowToStructByPos[BranchState], branchStatesSQL, pipeline, id)
}

// branchJobsSQL lists the last jobs of a fan-out's branches that are in one of the given states. Plan: as for branchStatesSQL.
const branchJobsSQL = `
select ` + jobColumns + ` from ` + jobOf + ` job
where id = any(array(select b.id from (` + store.BranchTails + `) b)) and state = any($3::text[])
order by array_position($3::text[], state), child_no limit $4`

// BranchJobs returns the last jobs of a fan-out's branches that are in one of the given states. They are ordered by the given states, then
// by position in the fan-out. After the first 8 MiB, arguments, results and plans are omitted.
func BranchJobs(ctx context.Context, s *store.Store, pipeline, id int64, states []job.State, limit int) ([]job.JobRow, error) {
	return Rows(ctx, s, fmt.Sprintf("read the children of job %d", id), leanJobs(), branchJobsSQL, pipeline, id, store.Texts(states), limit)
}

// branchPageSQL lists the last job of each branch of a fan-out that comes after a given position, in order. Plan: as for branchStatesSQL.
const branchPageSQL = `
select ` + jobColumns + ` from ` + jobOf + ` job
where id = any(array(select b.id from (` + store.BranchTails + `) b)) and ($3::text is null or state = $3) and child_no > $4
order by child_no limit $5`

// BranchPage returns the last job of each branch of a fan-out that comes after a given position. An empty state means any state. After the
// first 8 MiB, arguments, results and plans are omitted.
func BranchPage(ctx context.Context, s *store.Store, pipeline, id int64, state job.State, after, limit int) ([]job.JobRow, error) {
	return Rows(ctx, s, fmt.Sprintf("read the children of job %d", id), leanJobs(), branchPageSQL, pipeline, id, store.Some(string(state)), after, limit)
}

// TreeLimits limits the size of a tree, because every displayed child and every fan-out requires several queries.
type TreeLimits struct {
	Children int  // maximum number of displayed children per fan-out; 1,000 in the whole tree
	Latest   int  // number of jobs at the end of the spine whose fan-outs are read; 0 means all
	Flat     bool // whether to omit the fan-outs of children
}

// mostShown is the maximum number of children displayed in a tree.
const mostShown = 1000

// ReadTree returns the tree of the pipeline whose first job has the given id. It returns [job.ErrNotFound] if there is no such pipeline.
func ReadTree(ctx context.Context, s *store.Store, id int64, limits TreeLimits) (t job.Tree, err error) {
	if t.Pipeline, err = Pipeline(ctx, s, id); err != nil {
		return t, err
	}
	spine, err := Spine(ctx, s, id)
	if err == nil && len(spine) == 0 { // the pipeline was pruned after the first statement
		err = fmt.Errorf("read pipeline %d: %w", id, job.ErrNotFound)
	}
	if err != nil {
		return t, err
	}
	t.Jobs = asTree(spine)
	read := t.Jobs
	if limits.Latest > 0 {
		read = read[max(len(read)-limits.Latest, 0):]
	}
	left := mostShown
	return t, addFanOuts(ctx, s, read, limits, &left)
}

// FanOutOf returns a job's fan-out with a limited number of its children, or nil if the job has not fanned out.
func FanOutOf(ctx context.Context, s *store.Store, id int64, children int) (*job.TreeFanOut, error) {
	one, left := []job.TreeJob{{JobRow: job.JobRow{ID: id}}}, mostShown
	err := addFanOuts(ctx, s, one, TreeLimits{Children: children, Flat: true}, &left)
	return one[0].FanOut, err
}

func asTree(jobs []job.JobRow) []job.TreeJob {
	list := make([]job.TreeJob, len(jobs))
	for i, j := range jobs {
		list[i].JobRow = j
	}
	return list
}

// addFanOuts adds each job's fan-out, and recursively the fan-outs of the displayed children. left is the number of children that can still
// be displayed.
func addFanOuts(ctx context.Context, s *store.Store, jobs []job.TreeJob, limits TreeLimits, left *int) error {
	for i := range jobs {
		w, err := s.Waiting(ctx, jobs[i].ID)
		if errors.Is(err, job.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		f := &job.TreeFanOut{Branches: w.Branches, States: map[job.State]int{}}
		jobs[i].FanOut = f
		states, err := BranchStates(ctx, s, w.PipelineID, w.ID)
		if err != nil {
			return err
		}
		for _, branchState := range states {
			f.States[branchState.State] = branchState.Branches
		}
		if len(states) == 0 { // the branches are parts of a deferred job, which are completed externally
			f.States[job.Succeeded], f.States[job.Failed], f.States[job.Waiting] = w.Branches-w.Open-w.Failed, w.Failed, w.Open
		}
		shown, err := BranchJobs(ctx, s, w.PipelineID, w.ID, []job.State{job.Failed, job.Running, job.Waiting, job.Cancelled}, min(limits.Children, *left))
		if err != nil {
			return err
		}
		f.Shown, *left = asTree(shown), *left-len(shown)
		if limits.Flat {
			continue
		}
		if err := addFanOuts(ctx, s, f.Shown, limits, left); err != nil {
			return err
		}
	}
	return nil
}

// branchesSQL lists the outcomes of a fan-out's branches in the order of the fan-out. A branch's outcome is that of its last job. Plan:
// jobs_of_pipeline from (pipeline, group, branch), stops at the limit; primary key lookups and the id index of done.
const branchesSQL = `
select b.child_no, b.id, b.kind, b.subject, v.state, v.outcome, v.reason, v.error, v.result
from (
	select distinct on (coalesce(j.group_id, 0), coalesce(j.child_no, 0)) j.id, j.child_no, j.kind, j.subject
	from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and coalesce(j.child_no, 0) > $3 and j.step > 0
	order by coalesce(j.group_id, 0), coalesce(j.child_no, 0), j.step desc
	limit $4
) b
join trapeze.job v on v.id = b.id
order by b.child_no`

// BranchEnd is a branch's outcome.
type BranchEnd struct {
	No      int
	ID      int64 // id of the branch's last job, or 0 for a part that was completed externally
	Kind    string
	Subject string
	Part    string
	State   job.State
	Outcome *job.OutcomeStatus
	Reason  *job.Reason
	Error   *string
	Result  json.RawMessage
}

// Branches returns the outcomes of up to limit branches of a fan-out, starting after the given number.
func Branches(ctx context.Context, s *store.Store, pipeline, id int64, after, limit int) ([]BranchEnd, error) {
	list, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (b BranchEnd, err error) {
		var result []byte
		err = row.Scan(&b.No, &b.ID, &b.Kind, &b.Subject, &b.State, &b.Outcome, &b.Reason, &b.Error, &result)
		b.Result = result
		return b, err
	}, branchesSQL, pipeline, id, after, limit)
	return list, text.Wrap(err, "read the children of job %d", id)
}

// tracesOfFanOutSQL reads the trace contexts of a fan-out's job and of its first branches. For each branch, it reads the context of the
// last job. Joins use it when tracing is enabled. Plan: jobs_pkey; jobs_of_pipeline from (pipeline, group), stops at the limit.
const tracesOfFanOutSQL = `
select j.traceparent from trapeze.jobs j where j.id = $2 and j.traceparent is not null
union all
select b.traceparent from (
	select distinct on (coalesce(j.group_id, 0), coalesce(j.child_no, 0)) j.traceparent
	from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and coalesce(j.child_no, 0) > 0 and j.step > 0
	order by coalesce(j.group_id, 0), coalesce(j.child_no, 0), j.step desc
	limit $3
) b where b.traceparent is not null`

// TracesOfFanOut returns the trace contexts of a fan-out's job and of its first branches, as traceparent strings. It omits jobs that were
// not traced.
func TracesOfFanOut(ctx context.Context, s *store.Store, pipeline, id int64, branches int) ([]string, error) {
	return Rows(ctx, s, fmt.Sprintf("read the traces of the children of job %d", id), pgx.RowTo[string], tracesOfFanOutSQL, pipeline, id, branches)
}
