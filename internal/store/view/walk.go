package view

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// A list whose filter no index serves, such as a kind, a subject, a key, a lane or a common state, reads all jobs, starting with the newest. If
// few jobs in a long history match, it would have to read the whole history. It therefore reads in parts and ends its page after a limited
// time. An index for each of these filters would make every submission more expensive.

const (
	// lookFirst is the number of jobs that the first part of a walk reads per job on the page. lookAtOnce is the number of jobs that each
	// later part reads.
	lookFirst, lookAtOnce = 20, 20_000
)

// lookedSQL and ownLookedSQL return the job at which a part of the walk ends, $4 jobs after its start. lookedSQL considers all jobs, and
// ownLookedSQL only those of one submitter. They return no row if fewer jobs are left. Plan: jobs_by_age and jobs_by_submitter backwards,
// index only.
const (
	lookedSQL = `
select created_at, id from trapeze.jobs where ` + lookedFrom + ` order by created_at desc, id desc offset $4 limit 1`
	ownLookedSQL = `
select created_at, id from trapeze.jobs where submitter = $5 and submitter <> '' and ` + lookedFrom + ` order by created_at desc, id desc offset $4 limit 1`
	lookedFrom = `created_at >= coalesce($1::timestamptz, '-infinity')
	and (created_at, id) < (coalesce($2::timestamptz, 'infinity'), $3::bigint)`
)

// walkEnd is the last row that a part of a walk reads.
type walkEnd struct {
	At *time.Time // nil to start with the newest job
	ID int64
}

// walk reads a page in parts, starting after a given row. The ends function returns the last row of a part with n + 1 rows. The read
// function returns the matching rows of a part, up to and including that last row. If walk stops before the page is full or the end of the
// history is reached, until is the last row read. full reports whether the page was cut short because of its size.
func walk[T any](lookFor time.Duration, limit int, from walkEnd, bytesOf func(T) int, ends func(from walkEnd, n int) ([]walkEnd, error),
	read func(from walkEnd, down *walkEnd, limit int) ([]T, bool, error)) (list []T, full bool, until *walkEnd, err error) {
	began, bytes := time.Now(), 0
	for n := lookFirst * limit; ; n = lookAtOnce {
		end, err := ends(from, n-1)
		if err != nil {
			return nil, false, nil, err
		}
		var down *walkEnd // nil to read to the end
		if len(end) > 0 {
			down = &end[0]
		}
		part, full, err := read(from, down, limit-len(list))
		if err != nil {
			return nil, false, nil, err
		}
		for _, one := range part {
			bytes += bytesOf(one)
		}
		list, full = append(list, part...), full || len(part) > 0 && bytes >= withinBytes
		switch {
		case full || len(list) == limit || down == nil:
			return list, full, nil, nil
		case time.Since(began) >= lookFor:
			return list, false, down, nil
		}
		from = *down
	}
}

// bounds returns l as statement arguments. A nil l means that the part extends to the end.
func (l *walkEnd) bounds() []any {
	if l == nil {
		return []any{nil, int64(0)}
	}
	return []any{l.At, l.ID}
}

// walkJobs reads a page in parts (see [walk]). args are the first arguments of the statement all or, for an owner, of the statement own.
func walkJobs(ctx context.Context, s *store.Store, args []any, owner string, limit int, all, own string) (list []job.JobRow, full bool, until *walkEnd, err error) {
	sql, ends, whose := all, lookedSQL, []any(nil)
	if owner != "" {
		sql, ends, whose = own, ownLookedSQL, []any{owner}
	}
	return walk(s.SearchFor, limit, walkEnd{args[7].(*time.Time), args[8].(int64)}, jobBytes, func(from walkEnd, n int) ([]walkEnd, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[walkEnd], ends, append([]any{args[6], from.At, from.ID, n}, whose...)...)
	}, func(from walkEnd, down *walkEnd, limit int) ([]job.JobRow, bool, error) {
		args[7], args[8], args[9] = from.At, from.ID, limit
		return rowsWithin(ctx, s, scanJob, jobBytes, sql, slices.Concat(args, down.bounds(), whose)...)
	})
}

// jobsOfPipelineSQL lists the jobs of pipeline $5, newest first. If $16 is not null, it lists only that submitter's jobs. Plan: jobs_pkey
// and jobs_of_pipeline, a sort of the matching jobs; for each job, a probe of the table that contains it, stops at the limit.
const jobsOfPipelineSQL = `
select ` + jobColumns + ` from (
	select o.id as wanted, o.created_at as made from (
		select f.* from trapeze.jobs f where f.id = $5 and f.pipeline_id = $5
		union all
		select n.* from trapeze.jobs n where n.pipeline_id = $5 and n.step > 0
	) o
	where ($2::text is null or o.kind = $2) and ($4::text is null or o.subject = $4) and ($6::bigint is null or o.parent_id = $6)
		and ($11 or o.group_id is null) and ($7::timestamptz is null or o.created_at >= $7)
		and ($8::timestamptz is null or (o.created_at, o.id) < ($8, $9::bigint))
		and ($15::text is null or o.key = $15) and ($16::text is null or o.submitter = $16 and o.submitter <> '')
	order by o.created_at desc, o.id desc offset 0
) w cross join lateral (
	select ` + jobColumns + ` from ` + jobOf + ` job
	where id = w.wanted and ($1::text[] is null or state = any($1)) and ($3::text is null or lane = $3)
		and ($12::text is null or reason = $12) and ($13::text is null or error_class = $13) and ($14::text is null or error_code = $14) offset 0
) job
order by w.made desc, w.wanted desc limit $10`

// pipelineOfSQL returns a job's pipeline. Plan: jobs_pkey.
const pipelineOfSQL = `select pipeline_id from trapeze.jobs where id = $1`

// pipelineFor returns the pipeline to which all jobs that match a filter belong: the filter's pipeline or, if the filter has a parent job
// that still exists, the parent's pipeline. It returns 0 if there is no such pipeline.
func pipelineFor(ctx context.Context, s *store.Store, f job.Filter) (int64, error) {
	if f.Pipeline != 0 || f.Parent == 0 {
		return f.Pipeline, nil
	}
	found, err := store.Rows(ctx, s, pgx.RowTo[int64], pipelineOfSQL, f.Parent)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0], nil
}

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

// endedJobsSQL lists jobs that were created since $7 and failed or were cancelled, newest first. If $16 is not null, it lists only that
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
		and ($15::text is null or j.key = $15) and ($16::text is null or j.submitter = $16 and j.submitter <> '')
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
		n, err := One(store.Rows(ctx, s, pgx.RowTo[int], rareCountSQL, states, from, most+1))
		if err != nil || n > most {
			return false, text.Wrap(err, "count the %v", states)
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
func rareJobs(ctx context.Context, s *store.Store, f job.Filter, args []any, at *time.Time, limit int) (list []job.JobRow, full, found bool, err error) {
	if !onlyOf(f.States, job.Failed, job.Cancelled) {
		return nil, false, false, nil
	}
	most := mostRare
	if f.Kind != "" || f.Lane != "" || f.Subject != "" || f.Key != "" || f.Pipeline != 0 || f.Parent != 0 || f.Owner != "" ||
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

// mostOpen is the maximum number of open jobs that are collected by state. If there are more, open jobs are common enough for a walk over
// all jobs to find the newest ones quickly.
const mostOpen = 10_000

// openIDsSQL collects the ids of open jobs by state, unordered and up to a limit. Plan: one pass over live and parked, which hold no
// history; stops at the limit.
const openIDsSQL = `
select s.id from (
	select l.id, l.state, l.kind, l.lane, l.subject, l.key from trapeze.live l
	union all
	select p.id, case p.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end, p.kind, p.lane, p.subject, p.key
	from trapeze.parked p
) s
where s.state = any($1::text[]) and ($2::text is null or s.kind = $2) and ($3::text is null or s.lane = $3)
	and ($4::text is null or s.subject = $4) and ($5::text is null or s.key = $5) limit $6`

// openJobsSQL lists the jobs in $16 that are still open, newest first. If $17 is not null, it lists only that submitter's jobs. Its
// conditions on times are written so that no index can serve them. Plan: primary keys of the open jobs, then a sort; no history is read.
const openJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where id = any($16::bigint[])
	and state in ('awaiting_approval', 'pending', 'running', 'waiting') and ($17::text is null or submitter = $17 and submitter <> '')
	and ($7::timestamptz is null or created_at >= $7) and ($8::timestamptz is null or (created_at, id) < ($8, $9::bigint)) and ` + jobsMatched + jobsOrdered

// rareOpen reports whether a filter selects only open jobs and few jobs are open. It also returns the ids of the open jobs, which may
// include jobs that the filter excludes. If few are open, a list that starts with the newest job of any state might have to search the
// whole history for them.
func rareOpen(ctx context.Context, s *store.Store, f job.Filter, states []string) (ids []int64, rare bool, err error) {
	if len(states) == 0 || slices.ContainsFunc(f.States, job.State.Terminal) {
		return nil, false, nil
	}
	ids, err = store.Rows(ctx, s, pgx.RowTo[int64], openIDsSQL, states, store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), store.Some(f.Key), mostOpen+1)
	return ids, len(ids) <= mostOpen, text.Wrap(err, "list open jobs")
}
