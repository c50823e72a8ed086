package view

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// A list that asks for what no index leads to (a kind, a subject, a lane, a state that is common) looks at all jobs from the newest on.
// Where few of a long history match it would look at all of it; so it does so in parts, and ends its page when it has been at it for
// long enough. An index for each such question would cost every submission.

const (
	// lookFirst is how many jobs the first part holds for each that is listed, lookAtOnce how many the others hold.
	lookFirst, lookAtOnce = 20, 20_000
)

// lookedSQL and ownLookedSQL tell with which job a part of the walk ends, those of one submitter: the one after as many as $4 further
// ones; none where there are not so many. Plan: jobs_by_age and jobs_by_submitter backwards, index only.
const (
	lookedSQL = `
select created_at, id from trapeze.jobs where ` + lookedFrom + ` order by created_at desc, id desc offset $4 limit 1`
	ownLookedSQL = `
select created_at, id from trapeze.jobs where submitter = $5 and submitter <> '' and ` + lookedFrom + ` order by created_at desc, id desc offset $4 limit 1`
	lookedFrom = `created_at >= coalesce($1::timestamptz, '-infinity')
	and (created_at, id) < (coalesce($2::timestamptz, 'infinity'), $3::bigint)`
)

// looked is the last row that a part of a walk looks at.
type looked struct {
	At *time.Time // nil: of the newest
	ID int64
}

// walk reads a page part by part, from a moment and an id on: ends tells with which row a part of so many ends, read reads what of a part,
// down to that row, is to be listed. It returns how far it looked if it ends before the page is full and before the end; full says that the
// page ends early because of what it holds.
func walk[T any](lookFor time.Duration, limit int, from looked, bytesOf func(T) int, ends func(from looked, n int) ([]looked, error),
	read func(from looked, down *looked, limit int) ([]T, bool, error)) (list []T, full bool, until *looked, err error) {
	began, bytes := time.Now(), 0
	for n := lookFirst * limit; ; n = lookAtOnce {
		end, err := ends(from, n-1)
		if err != nil {
			return nil, false, nil, err
		}
		var down *looked // nil: to the end
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

// bounds are the arguments for the end of a part: none to the end.
func (l *looked) bounds() []any {
	if l == nil {
		return []any{nil, int64(0)}
	}
	return []any{l.At, l.ID}
}

// walkJobs reads a page as jobsSQL does with its arguments, or ownJobsSQL for an owner, part by part: see [walk].
func walkJobs(ctx context.Context, s *store.Store, args []any, owner string, limit int) (list []job.Job, full bool, until *looked, err error) {
	sql, ends, whose := jobsSQL, lookedSQL, []any(nil)
	if owner != "" {
		sql, ends, whose = ownJobsSQL, ownLookedSQL, []any{owner}
	}
	return walk(s.SearchFor, limit, looked{args[7].(*time.Time), args[8].(int64)}, jobBytes, func(from looked, n int) ([]looked, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[looked], ends, append([]any{args[6], from.At, from.ID, n}, whose...)...)
	}, func(from looked, down *looked, limit int) ([]job.Job, bool, error) {
		args[7], args[8], args[9] = from.At, from.ID, limit
		return rowsWithin(ctx, s, scanJob, jobBytes, sql, append(append(args[:14:14], down.bounds()...), whose...)...)
	})
}

// jobsOfPipelineSQL lists the jobs of the pipeline $5, newest first. $15: of one submitter.
// Plan: jobs_pkey and jobs_of_pipeline, a sort of what matches; a probe of its place for each, stops at the limit.
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

// pipelineOfSQL tells which pipeline a job belongs to. Plan: jobs_pkey.
const pipelineOfSQL = `select pipeline_id from trapeze.jobs where id = $1`

// pipelineFor tells in which pipeline all that a filter selects is: the one that it names, or that of the parent it names, if that is
// known still; 0: in any.
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
