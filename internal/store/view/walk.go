package view

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// A list whose filter no index serves, such as a kind, a subject, a lane or a common state, reads all jobs, starting with the newest. If
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

// walkJobs reads a page in parts, with the arguments of jobsSQL. For an owner, it uses ownJobsSQL. See [walk].
func walkJobs(ctx context.Context, s *store.Store, args []any, owner string, limit int) (list []job.Job, full bool, until *walkEnd, err error) {
	sql, ends, whose := jobsSQL, lookedSQL, []any(nil)
	if owner != "" {
		sql, ends, whose = ownJobsSQL, ownLookedSQL, []any{owner}
	}
	return walk(s.SearchFor, limit, walkEnd{args[7].(*time.Time), args[8].(int64)}, jobBytes, func(from walkEnd, n int) ([]walkEnd, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[walkEnd], ends, append([]any{args[6], from.At, from.ID, n}, whose...)...)
	}, func(from walkEnd, down *walkEnd, limit int) ([]job.Job, bool, error) {
		args[7], args[8], args[9] = from.At, from.ID, limit
		return rowsWithin(ctx, s, scanJob, jobBytes, sql, append(append(args[:14:14], down.bounds()...), whose...)...)
	})
}

// jobsOfPipelineSQL lists the jobs of pipeline $5, newest first. If $15 is not null, it lists only that submitter's jobs. Plan: jobs_pkey
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
		and ($15::text is null or o.submitter = $15 and o.submitter <> '')
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
