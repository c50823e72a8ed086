package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Search is a parsed search, such as `refused args.user.id=7`. A job matches if Text occurs in its kind, subject, submitter or error, if
// Error occurs in its error, and if its args have the given values. An unquoted number that is the id of a job matches only that job. Only
// args are case-sensitive. The zero value matches every job.
type Search struct {
	Text  string
	Error string
	Args  []ArgIs

	source string
	id     int64 // the job id, if the text is a number; otherwise 0
	errors bool  // Text is also searched in errors; see [Search.For]
}

// ArgIs requires a value at a path in the args. The value is a string, or another scalar in JSON. Numbers in the path are array indexes.
type ArgIs struct{ Path, Value string }

// These limits apply to a search.
const (
	maxSearch     = 500
	maxSearchArgs = 5
)

// ParseSearch parses a search. Words of the form args.path=value and error=text are conditions; the remaining words form the text. A value
// that contains spaces must be quoted.
func ParseSearch(text string) (s Search, err error) {
	s.source = text
	if len(text) > maxSearch {
		return s, fmt.Errorf("search of %d bytes: want at most %d", len(text), maxSearch)
	}
	var words []string
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimLeft(rest, " ") {
		var word string
		word, rest = nextWord(rest)
		name, value, is := strings.Cut(word, "=")
		value = unquote(value)
		path, ofArgs := strings.CutPrefix(name, "args.")
		switch {
		case ofArgs && (!is || path == ""):
			return s, fmt.Errorf("search %q: want args.path=value, such as args.user.id=7", word)
		case ofArgs:
			s.Args = append(s.Args, ArgIs{path, value})
		case is && name == "error":
			if s.Error != "" || value == "" {
				return s, fmt.Errorf("search %q: want error=text, once", word)
			}
			s.Error = value
		default:
			words = append(words, word)
		}
	}
	if len(s.Args) > maxSearchArgs {
		return s, fmt.Errorf("search with %d args: want at most %d", len(s.Args), maxSearchArgs)
	}
	s.Text = strings.Join(words, " ")
	if id, err := strconv.ParseInt(strings.TrimPrefix(s.Text, "#"), 10, 64); err == nil && id > 0 && !s.Secret() {
		s.id = id
	}
	s.Text = unquote(s.Text)
	return s, nil
}

// nextWord splits off the first word of a text. Spaces inside double quotes are part of the word.
func nextWord(text string) (word, rest string) {
	quoted := false
	for i, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ' ' && !quoted:
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// unquote removes the double quotes around a value.
func unquote(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		return value[1 : len(value)-1]
	}
	return value
}

// String returns the search in its original form.
func (s Search) String() string { return s.source }

// Any reports whether the search has any conditions.
func (s Search) Any() bool { return s.Text != "" || s.Error != "" || len(s.Args) > 0 }

// Secret reports whether the search has conditions on args or errors, which may contain secrets.
func (s Search) Secret() bool { return s.Error != "" || len(s.Args) > 0 }

// ErrSearchForbidden means that the caller may not search args or errors.
var ErrSearchForbidden = errors.New("searching args and errors needs permission jobs:args")

// For restricts the search and the filter to the fields and jobs that a caller may search. allowed reports whether the caller has the
// permission jobs:args. If argsOf is not empty, the permission covers only that submitter's jobs. A search for args or errors never matches
// other jobs, so the result reveals nothing about them. Text is searched in errors only if the permission covers all jobs that the filter
// selects.
func (s Search) For(f job.Filter, allowed bool, argsOf string) (Search, job.Filter, error) {
	switch {
	case s.Secret() && !allowed:
		return s, f, ErrSearchForbidden
	case s.Secret() && argsOf != "":
		f.Owner = argsOf
	}
	s.errors = allowed && (argsOf == "" || f.Owner == argsOf)
	return s, f, nil
}

// states returns the states that matching jobs can have (see [job.Filter.Possible]). Args are searched only in unfinished and failed jobs,
// and errors only in failed and cancelled ones, because even a long history contains few such jobs.
func (s Search) states(f job.Filter) ([]job.State, error) {
	of, most := f.Possible(), []job.State(nil)
	switch {
	case s.Error != "":
		most = []job.State{job.Failed, job.Cancelled}
	case len(s.Args) > 0:
		most = []job.State{job.AwaitingApproval, job.Pending, job.Running, job.Waiting, job.Failed}
	default:
		return of, nil
	}
	if len(of) == 0 {
		return most, nil
	}
	if !onlyOf(of, most...) {
		return nil, fmt.Errorf("%w: search of args and errors: want some of the states %v, not %v", job.ErrInvalid, most, of)
	}
	return of, nil
}

// arguments returns the conditions as arguments for jobsFound: patterns for the text and the error, whether errors are searched for the
// text, and the paths and values in the args.
func (s Search) arguments() []any {
	var paths, values []string
	for _, a := range s.Args {
		paths, values = append(paths, a.Path), append(values, a.Value)
	}
	return []any{pattern(s.Text), pattern(s.Error), s.errors, paths, values}
}

// pattern returns an ILIKE pattern that matches any string containing text. It returns nil if text is empty.
func pattern(text string) *string {
	if text == "" {
		return nil
	}
	text = "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
	return &text
}

// onlyID reports whether the search is explicitly for a job id, such as #4711.
func (s Search) onlyID() bool { return s.id != 0 && strings.HasPrefix(s.Text, "#") }

// No index covers the text of a search, so a search reads the jobs that its filter selects, newest first. If the filter selects only
// unfinished, failed or cancelled jobs, and there are at most mostSearched of them, the search reads them all. Otherwise, it walks over all
// jobs in parts, and ends each page after a limited time (see [walk]).

// mostSearched limits the number of unfinished, failed and cancelled jobs that one statement searches. mostErrors limits the number of
// those with a matching error.
const (
	mostSearched = 100_000
	mostErrors   = 10_000
)

// searchedText and searchedArgs are the conditions of a search. A condition on the error goes between them. Their parameters, from $16 on,
// are those of [Search.arguments].
const (
	searchedText = `($16::text is null or kind ilike $16 or subject ilike $16 or submitter ilike $16 or `
	searchedArgs = `) and ($19::text[] is null or not exists (select from unnest($19, $20::text[]) as a(path, value)
		where (args #>> string_to_array(a.path, '.')) is distinct from a.value))`
)

// searchJobsSQL lists the jobs that match a search, newest first, up to and including the job ($22, $23). $21 lists the jobs with a
// matching error. If there are too many such jobs, $18 is true and the statement reads each job's error instead. Plan: as for jobsSQL;
// text and args are filters on the scan of jobs_by_age.
const searchJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where ` + searchedWalk

// searchOwnJobsSQL is like searchJobsSQL, for one submitter's jobs. Plan: jobs_by_submitter backwards, otherwise as for searchJobsSQL.
const searchOwnJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where submitter = $24 and submitter <> '' and ` + searchedWalk

const searchedWalk = searchedText + `id = any($21::bigint[]) or $18::boolean and coalesce(
		(select d.error ilike $16 from trapeze.done_failed d where ` + searchedEnd + ` limit 1),
		(select d.error ilike $16 from trapeze.done_cancelled d where ` + searchedEnd + ` limit 1))` + searchedArgs + `
	and ($17::text is null or error ilike $17) and ` + jobsMatched + `
	and created_at >= coalesce($7::timestamptz, '-infinity') and (created_at, id) < (coalesce($8::timestamptz, 'infinity'), $9::bigint)
	and (created_at, id) >= (coalesce($22::timestamptz, '-infinity'), $23::bigint)` + jobsOrdered

const searchedEnd = `d.id = job.id and d.finished_at >= job.created_at - interval '1 day'`

// searchFewSQL lists unfinished, failed and cancelled jobs that match a search, newest first. If $21 is not null, it lists only that
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
	where ` + searchedText + `$18::boolean and failure ilike $16` + searchedArgs + ` and ($17::text is null or failure ilike $17)
		and ($2::text is null or kind = $2) and ($4::text is null or subject = $4) and ($5::bigint is null or pipeline_id = $5)
		and ($6::bigint is null or parent_id = $6) and ($11 or group_id is null) and ($7 is null or created_at >= $7)
		and ($15::text is null or key = $15) and ($8::timestamptz is null or (created_at, id) < ($8, $9::bigint)) and ($21::text is null or submitter = $21 and submitter <> '')
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
		page.Jobs = []job.JobRow{named}
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
func searchFew(ctx context.Context, s *store.Store, f job.Filter, args []any, at *time.Time, limit int) (list []job.JobRow, full, found bool, err error) {
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
func searchWalk(ctx context.Context, s *store.Store, args []any, q Search, owner string, limit int) (list []job.JobRow, full bool, until *walkEnd, err error) {
	ids, few, err := errorIDs(ctx, s, args[6].(*time.Time), q)
	if err != nil {
		return nil, false, nil, err
	}
	args[17] = q.errors && !few
	return walkJobs(ctx, s, append(args, ids), owner, limit, searchJobsSQL, searchOwnJobsSQL)
}

// errorIDs returns the jobs whose error contains the text of a search. If there are too many of them to list, few is false.
func errorIDs(ctx context.Context, s *store.Store, since *time.Time, q Search) (ids []int64, few bool, err error) {
	if !q.errors || q.Text == "" {
		return nil, true, nil
	}
	n, err := One(store.Rows(ctx, s, pgx.RowTo[int], rareCountSQL, []string{string(job.Failed), string(job.Cancelled)}, since, mostSearched+1))
	if err != nil || n > mostSearched {
		return nil, false, err
	}
	ids, err = store.Rows(ctx, s, pgx.RowTo[int64], errorIDsSQL, since, pattern(q.Text), mostErrors+1)
	if len(ids) > mostErrors {
		return nil, false, err
	}
	return ids, true, err
}
