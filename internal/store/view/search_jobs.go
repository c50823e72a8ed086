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

// No index covers the text of a search, so a search reads the jobs that its filter selects, newest first. If the filter selects only
// unfinished, failed or cancelled jobs, and there are at most mostSearched of them, the search reads them all. Otherwise, it walks over all
// jobs in parts, and ends each page after a limited time (see [walk]).

// mostSearched limits the number of unfinished, failed and cancelled jobs that one statement searches. mostErrors limits the number of
// those with a matching error.
const (
	mostSearched = 100_000
	mostErrors   = 10_000
)

// searchedText and searchedArgs are the conditions of a search. A condition on the error goes between them. Their parameters, from $15 on,
// are those of [Search.arguments].
const (
	searchedText = `($15::text is null or kind ilike $15 or subject ilike $15 or submitter ilike $15 or `
	searchedArgs = `) and ($18::text[] is null or not exists (select from unnest($18, $19::text[]) as a(path, value)
		where (args #>> string_to_array(a.path, '.')) is distinct from a.value))`
)

// searchJobsSQL lists the jobs that match a search, newest first, up to and including the job ($21, $22). $20 lists the jobs with a
// matching error. If there are too many such jobs, $17 is true and the statement reads each job's error instead. Plan: as for jobsSQL;
// text and args are filters on the scan of jobs_by_age.
const searchJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where ` + searchedWalk

// searchOwnJobsSQL is like searchJobsSQL, for one submitter's jobs. Plan: jobs_by_submitter backwards, otherwise as for searchJobsSQL.
const searchOwnJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where submitter = $23 and submitter <> '' and ` + searchedWalk

const searchedWalk = searchedText + `id = any($20::bigint[]) or $17::boolean and coalesce(
		(select d.error ilike $15 from trapeze.done_failed d where ` + searchedEnd + ` limit 1),
		(select d.error ilike $15 from trapeze.done_cancelled d where ` + searchedEnd + ` limit 1))` + searchedArgs + `
	and ($16::text is null or error ilike $16) and ` + jobsMatched + `
	and created_at >= coalesce($7::timestamptz, '-infinity') and (created_at, id) < (coalesce($8::timestamptz, 'infinity'), $9::bigint)
	and (created_at, id) >= (coalesce($21::timestamptz, '-infinity'), $22::bigint)` + jobsOrdered

const searchedEnd = `d.id = job.id and d.finished_at >= job.created_at - interval '1 day'`

// searchFewSQL lists unfinished, failed and cancelled jobs that match a search, newest first. If $20 is not null, it lists only that
// submitter's jobs. Plan: live, parked and the days of these states since $7; jobs_pkey for each, a sort of the matching jobs; for each, a
// probe of the table that contains it, stops at the limit.
const searchFewSQL = `
select ` + jobColumns + ` from (
	select j.id as wanted, j.created_at as made from (
		select l.id as searched, null::text as failure from trapeze.live l
		where l.id > 0 and l.state = any($1::text[]) and ($3::text is null or l.lane = $3)
		union all
		select k.id, null from trapeze.parked k
		where k.id > 0 and case k.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end = any($1)
			and ($3 is null or k.lane = $3)
		union all
		select d.id, d.error from trapeze.done d
		where ` + rareEnd + ` and d.finished_at >= coalesce($7::timestamptz, '-infinity') and ($3 is null or d.lane = $3)
			and ($12::text is null or d.reason = $12) and ($13::text is null or d.error_class = $13) and ($14::text is null or d.error_code = $14)
	) c cross join lateral (select * from trapeze.jobs o where o.id = c.searched offset 0) j
	where ` + searchedText + `$17::boolean and failure ilike $15` + searchedArgs + ` and ($16::text is null or failure ilike $16)
		and ($2::text is null or kind = $2) and ($4::text is null or subject = $4) and ($5::bigint is null or pipeline_id = $5)
		and ($6::bigint is null or parent_id = $6) and ($11 or group_id is null) and ($7 is null or created_at >= $7)
		and ($8::timestamptz is null or (created_at, id) < ($8, $9::bigint)) and ($20::text is null or submitter = $20 and submitter <> '')
	order by j.created_at desc, j.id desc offset 0
) w cross join lateral (
	select ` + jobColumns + ` from ` + jobOf + ` job where id = w.wanted and state = any($1) and ($3 is null or lane = $3)
		and ($12 is null or reason = $12) and ($13 is null or error_class = $13) and ($14 is null or error_code = $14) offset 0
) job
order by w.made desc, w.wanted desc limit $10`

// errorIDsSQL lists failed and cancelled jobs that ended since $1 and have a matching error. Plan: the days of these states since then.
const errorIDsSQL = `
select d.id from trapeze.done d where d.id > 0 and d.state in ('failed', 'cancelled') and d.finished_at >= coalesce($1::timestamptz, '-infinity')
	and d.error ilike $2::text limit $3`

// SearchJobs returns a page of the jobs that match a filter and a search, newest first. The caller must have passed both to [Search.For].
// If the text is the id of a job that the filter otherwise selects, the page contains only that job, regardless of its age.
func SearchJobs(ctx context.Context, s *store.Store, f job.Filter, q Search) (Page, error) {
	if !q.Any() {
		return Jobs(ctx, s, f)
	}
	if q.id != 0 && f.Cursor == "" {
		if page, err := searchID(ctx, s, f, q.id); err != nil || len(page.Jobs) > 0 || q.onlyID() {
			return page, err
		}
	}
	page, err := searchJobs(ctx, s, f, q)
	if err != nil && !errors.Is(err, job.ErrInvalid) {
		err = fmt.Errorf("search jobs: %w", err)
	}
	return page, err
}

// searchID returns a page with the job that has the given id, or an empty page if the filter does not select that job.
func searchID(ctx context.Context, s *store.Store, f job.Filter, id int64) (page Page, err error) {
	named, err := Job(ctx, s, id)
	if errors.Is(err, job.ErrNotFound) {
		return page, nil
	}
	f.Since, f.States = time.Time{}, f.Possible()
	if err == nil && (f.Owner == "" || f.Owner == named.Submitter) && (f.Kind == "" || f.Kind == named.Kind) &&
		(f.Subject == "" || f.Subject == named.Subject) && matchesFilter(f, named) {
		page.Jobs = []job.Job{named}
	}
	return page, err
}

func searchJobs(ctx context.Context, s *store.Store, f job.Filter, q Search) (page Page, err error) {
	if f.Current {
		return page, fmt.Errorf("%w: want a search or the current runs, not both", job.ErrInvalid)
	}
	if f.States, err = q.states(f); err != nil {
		return page, err
	}
	if f.Children == nil {
		f.Children = new(true)
	}
	args, at, limit, err := listArguments(f)
	if err != nil {
		return page, err
	}
	args = append(args, q.arguments()...)
	list, full, found, err := searchFew(ctx, s, f, args, at, limit)
	var until *walkEnd
	if err == nil && !found {
		list, full, until, err = searchWalk(ctx, s, args, q, f.Owner, limit)
	}
	if err != nil {
		return page, err
	}
	return pageOf(list, full, until, limit), nil
}

// searchFew performs the search if the filter selects only unfinished, failed and cancelled jobs and there are not too many of them.
// Otherwise, found is false, and the caller must walk over all jobs.
func searchFew(ctx context.Context, s *store.Store, f job.Filter, args []any, at *time.Time, limit int) (list []job.Job, full, found bool, err error) {
	if len(f.States) == 0 || slices.Contains(f.States, job.Succeeded) {
		return nil, false, false, nil
	}
	counted := []string{string(job.Running)} // Running represents all unfinished jobs here
	for _, state := range f.States {
		if state.Terminal() {
			counted = append(counted, string(state))
		}
	}
	if onlyOf(f.States, job.Failed, job.Cancelled) {
		counted = counted[1:]
	}
	found, err = rare(ctx, s, counted, args[6].(*time.Time), at, mostSearched, func(since *time.Time) (bool, error) {
		own := append(slices.Clone(args), store.Some(f.Owner))
		own[6] = since
		list, full, err = rowsWithin(ctx, s, scanJob, jobBytes, searchFewSQL, own...)
		return full || len(list) == limit, err
	})
	return list, full, found, err
}

// searchWalk reads a page of a search in parts (see [walk]). If owner is not empty, it reads only that submitter's jobs.
func searchWalk(ctx context.Context, s *store.Store, args []any, q Search, owner string, limit int) (list []job.Job, full bool, until *walkEnd, err error) {
	ids, few, err := errorIDs(ctx, s, args[6].(*time.Time), q)
	if err != nil {
		return nil, false, nil, err
	}
	args[16] = q.errors && !few
	args = append(args, ids)
	sql, ends, whose := searchJobsSQL, lookedSQL, []any(nil)
	if owner != "" {
		sql, ends, whose = searchOwnJobsSQL, ownLookedSQL, []any{owner}
	}
	return walk(s.SearchFor, limit, walkEnd{args[7].(*time.Time), args[8].(int64)}, jobBytes, func(from walkEnd, n int) ([]walkEnd, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[walkEnd], ends, append([]any{args[6], from.At, from.ID, n}, whose...)...)
	}, func(from walkEnd, down *walkEnd, limit int) ([]job.Job, bool, error) {
		args[7], args[8], args[9] = from.At, from.ID, limit
		return rowsWithin(ctx, s, scanJob, jobBytes, sql, append(append(args[:20:20], down.bounds()...), whose...)...)
	})
}

// errorIDs returns the jobs whose error contains the text of a search. If there are too many of them to list, few is false.
func errorIDs(ctx context.Context, s *store.Store, since *time.Time, q Search) (ids []int64, few bool, err error) {
	if !q.errors || q.Text == "" {
		return nil, true, nil
	}
	n, err := store.Rows(ctx, s, pgx.RowTo[int], rareCountSQL, []string{string(job.Failed), string(job.Cancelled)}, since, mostSearched+1)
	if err != nil || n[0] > mostSearched {
		return nil, false, err
	}
	ids, err = store.Rows(ctx, s, pgx.RowTo[int64], errorIDsSQL, since, pattern(q.Text), mostErrors+1)
	if len(ids) > mostErrors {
		return nil, false, err
	}
	return ids, true, err
}
