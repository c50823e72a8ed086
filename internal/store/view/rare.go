package view

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Failed and cancelled jobs are rare in a long history, so lists of them start from the finished jobs in those states. Lists that started
// with the newest of all jobs might have to skip millions of successful ones. A job cannot end before it is created, so all failed or
// cancelled jobs created since a given time are among the jobs that ended since then. If those jobs fill a page, no other job belongs on
// it.

// rareSpans lists the periods that a list searches in turn until its page is full. 0 means the whole history.
var rareSpans = []time.Duration{24 * time.Hour, 7 * 24 * time.Hour, 0}

// mostRare is the maximum number of jobs that are collected by state. If the list also filters by kind or a similar field, mostRareOfAKind
// applies instead, because far fewer jobs may match. Above the limit, such jobs are common enough for a walk over all jobs to find them
// quickly.
const (
	mostRare        = 10_000
	mostRareOfAKind = 100_000
)

// rareEnd is an SQL condition that selects the rows d of done that failed or were cancelled and whose state is in $1.
const rareEnd = `d.id > 0 and d.state in ('failed', 'cancelled') and d.state = any($1::text[])`

// rareCountSQL counts, up to a limit, the jobs that failed or were cancelled since a given time. If running is among the states, it also
// counts open jobs. Plan: the days of these states since then; live and parked, up to the limit.
const rareCountSQL = `
select (select count(*) from (
		select from trapeze.done d where ` + rareEnd + ` and d.finished_at >= coalesce($2::timestamptz, '-infinity') limit $3
	) e) + (select count(*) from (
		select from trapeze.live where id > 0 and 'running' = any($1)
		union all
		select from trapeze.parked where id > 0 and 'running' = any($1)
		limit $3
	) o)`

// endedJobsSQL lists jobs that were created since $7 and failed or were cancelled, newest first. If $15 is not null, it lists only that
// submitter's jobs. Plan: the days of these states since then, collected into an array, because the planner would otherwise start with the
// newest of all jobs; jobs_pkey for each, a sort; the view for the listed jobs.
const endedJobsSQL = `
select ` + jobColumns + ` from ` + jobOf + ` job where id = any(array(
	select j.id from trapeze.jobs j
	where j.id = any(array(
			select d.id from trapeze.done d
			where ` + rareEnd + ` and d.finished_at >= coalesce($7::timestamptz, '-infinity') and ($3::text is null or d.lane = $3)
				and ($12::text is null or d.reason = $12) and ($13::text is null or d.error_class = $13)
				and ($14::text is null or d.error_code = $14)))
		and ($7 is null or j.created_at >= $7) and ($8::timestamptz is null or (j.created_at, j.id) < ($8, $9::bigint))
		and ($2::text is null or j.kind = $2) and ($4::text is null or j.subject = $4) and ($5::bigint is null or j.pipeline_id = $5)
		and ($6::bigint is null or j.parent_id = $6) and ($11 or j.group_id is null)
		and ($15::text is null or j.submitter = $15 and j.submitter <> '')
	order by j.created_at desc, j.id desc limit $10
)) and state in ('failed', 'cancelled') and state = any($1) and finished_at >= coalesce($7, '-infinity')
order by created_at desc, id desc`

// rarePipelinesSQL lists pipelines that were created since $3 and are running, failed or were cancelled, newest first. The last job of such
// a pipeline's spine is open, or has ended in one of these states since then. Plan: as for endedJobsSQL, and one pass over live and parked
// if running is among the states; jobs_of_pipeline and pipelines_pkey for each row.
const rarePipelinesSQL = `
select * from (
	select ` + pipelineColumns + ` from ` + pipelineOf + ` p where p.id = any(array(
		select g.id from trapeze.jobs j join trapeze.pipelines g on g.id = j.pipeline_id
		where j.id = any(array(
				select d.id from trapeze.done d where ` + rareEnd + ` and d.finished_at >= coalesce($3::timestamptz, '-infinity')
				union all
				select l.id from trapeze.live l where l.id > 0 and 'running' = any($1)
				union all
				select k.id from trapeze.parked k where k.id > 0 and 'running' = any($1)))
			and j.group_id is null and j.child_no is null and ($2::text is null or g.name = $2)
			and ($3 is null or g.created_at >= $3) and ($4::timestamptz is null or (g.created_at, g.id) < ($4, $5::bigint))
			and j.id = coalesce((
				select n.id from trapeze.jobs n
				where n.pipeline_id = g.id and coalesce(n.group_id, 0) = 0 and coalesce(n.child_no, 0) = 0 and n.step > 0
				order by n.step desc limit 1), g.id)
		order by g.created_at desc, g.id desc limit $6)) offset 0
) p order by p.created_at desc, p.id desc`

// rare calls read with earlier and earlier start times until the page is full or the whole requested period has been read. It returns false
// if there are too many jobs in the given states.
func rare(ctx context.Context, s *store.Store, states []string, since, newest *time.Time, most int, read func(since *time.Time) (full bool, err error)) (bool, error) {
	at := time.Now()
	if newest != nil {
		at = *newest
	}
	for _, span := range rareSpans {
		from := since
		if begin := at.Add(-span); span > 0 && (since == nil || begin.After(*since)) {
			from = &begin
		}
		n, err := store.Rows(ctx, s, pgx.RowTo[int], rareCountSQL, states, from, most+1)
		if err != nil {
			return false, fmt.Errorf("count the %v: %w", states, err)
		}
		if n[0] > most {
			return false, nil
		}
		if full, err := read(from); err != nil || full || from == since {
			return true, err
		}
	}
	return true, nil
}

// onlyOf reports whether asked is not empty and contains only values from of.
func onlyOf[T comparable](asked []T, of ...T) bool {
	return len(asked) > 0 && !slices.ContainsFunc(asked, func(one T) bool { return !slices.Contains(of, one) })
}

// rareJobs reads a page of failed or cancelled jobs, with the arguments of jobsSQL. If found is false, the caller must use jobsSQL instead.
func rareJobs(ctx context.Context, s *store.Store, f job.Filter, args []any, at *time.Time, limit int) (list []job.Job, full, found bool, err error) {
	if !onlyOf(f.States, job.Failed, job.Cancelled) {
		return nil, false, false, nil
	}
	most := mostRare
	if f.Kind != "" || f.Lane != "" || f.Subject != "" || f.Pipeline != 0 || f.Parent != 0 || f.Owner != "" ||
		f.Reason != "" || f.ErrorClass != "" || f.ErrorCode != "" {
		most = mostRareOfAKind
	}
	states, since := args[0].([]string), args[6].(*time.Time)
	found, err = rare(ctx, s, states, since, at, most, func(since *time.Time) (bool, error) {
		own := append(slices.Clone(args), store.Some(f.Owner))
		own[6] = since
		list, full, err = rowsWithin(ctx, s, scanJob, jobBytes, endedJobsSQL, own...)
		return full || len(list) == limit, err
	})
	return list, full, found, err
}

// rarePipelines reads a page of running, failed or cancelled pipelines, with the arguments of pipelinesSQL. If found is false, the caller
// must use pipelinesSQL instead.
func rarePipelines(ctx context.Context, s *store.Store, f PipelineFilter, args []any, at *time.Time, limit int) (list []job.Pipeline, full, found bool, err error) {
	if f.Owner != "" || !onlyOf(f.Statuses, job.PipelineRunning, job.PipelineFailed, job.PipelineCancelled) {
		return nil, false, false, nil
	}
	states, since := args[0].([]string), args[2].(*time.Time)
	found, err = rare(ctx, s, states, since, at, mostRare, func(since *time.Time) (bool, error) {
		own := slices.Clone(args)
		own[2] = since
		list, full, err = rowsWithin(ctx, s, scanPipeline, pipelineBytes, rarePipelinesSQL, own...)
		return full || len(list) == limit, err
	})
	return list, full, found, err
}
