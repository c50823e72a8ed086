package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

const jobColumns = columnsToArgs + `planned` + columnsFromResult

const (
	columnsToArgs = `id, kind, lane, subject, coalesce(key, '') as key, state, is_current, priority, attempt, max_attempts, crashes, fence, epoch,
	pod::text, pipeline_id, parent_id, step, args, `
	columnsFromResult = `, result, outcome, reason, error, progress_done, progress_total,
	progress_message, unique_key, submitter, created_at, run_after, started_at, finished_at, cancel_requested, event_no,
	group_id, child_no, error_class, error_code, replaced`
)

// jobSQL reads one job. Plan: as for jobOf, primary key lookups and the id index of done.
const jobSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where id = $1`

// Job returns one job, or [job.ErrNotFound]. It finds the job even while it is moving between tables.
func Job(ctx context.Context, s *store.Store, id int64) (job.JobRow, error) {
	return Row(ctx, s, fmt.Sprintf("read job %d", id), scanJob, jobSQL, id)
}

// JobIn is like [Job], but runs in the caller's transaction, which must not wait for a second connection.
func JobIn(ctx context.Context, s *store.Store, tx pgx.Tx, id int64) (job.JobRow, error) {
	found, err := One(store.Query(ctx, s, tx, scanJob, jobSQL, id))
	return found, text.Wrap(err, "read job %d", id)
}

// Rows is like [store.Rows]. If the statement fails, the error begins with what failed, such as "list lanes".
func Rows[T any](ctx context.Context, s *store.Store, what string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	list, err := store.Rows(ctx, s, scan, sql, args...)
	return list, text.Wrap(err, "%s", what)
}

// Row is like [Rows], for a statement that reads one row. It returns [job.ErrNotFound] if the statement reads none.
func Row[T any](ctx context.Context, s *store.Store, what string, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	row, err := One(store.Rows(ctx, s, scan, sql, args...))
	return row, text.Wrap(err, "%s", what)
}

// One returns the row that a statement has read, or [job.ErrNotFound] if it has read none.
func One[T any](list []T, err error) (row T, _ error) {
	if err == nil && len(list) == 0 {
		err = job.ErrNotFound
	}
	if err != nil {
		return row, err
	}
	return list[0], nil
}

// Page is one page of jobs, newest first. It may contain fewer jobs than the limit if the jobs are large or if only a few of many jobs
// match. Only the last page has an empty cursor.
type Page struct {
	Jobs     []job.JobRow
	Cursor   string    // cursor for the next page, or empty on the last page
	Searched time.Time // if the search stopped early, how far back it has read; otherwise zero
}

// jobsSQL lists jobs newest first, back to the job ($16, $17). Null arguments match everything. Plan: jobs_by_age backwards, from the
// cursor to that job or to the given time, stops at the limit.
const jobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where ` + jobsChosen

// ownJobsSQL lists one submitter's jobs, newest first. Plan: jobs_by_submitter backwards, otherwise as for jobsSQL.
const ownJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where submitter = $18 and submitter <> '' and ` + jobsChosen

// jobsChosen uses coalesce to compare times, so that the comparisons can bound an index scan. Conditions with "is null or" cannot do so,
// because the plan must be valid for all arguments.
const jobsChosen = jobsMatched + `
	and created_at >= coalesce($7::timestamptz, '-infinity') and (created_at, id) < (coalesce($8::timestamptz, 'infinity'), $9::bigint)
	and (created_at, id) >= (coalesce($16::timestamptz, '-infinity'), $17::bigint)` + jobsOrdered

const jobsMatched = `
	($1::text[] is null or state = any($1)) and ($2::text is null or kind = $2) and ($3::text is null or lane = $3)
	and ($4::text is null or subject = $4) and ($5::bigint is null or pipeline_id = $5) and ($6::bigint is null or parent_id = $6)
	and ($11 or group_id is null) and ($12::text is null or reason = $12) and ($13::text is null or error_class = $13)
	and ($14::text is null or error_code = $14) and ($15::text is null or key = $15)`

const jobsOrdered = `
order by created_at desc, id desc limit $10`

// Jobs returns a page of jobs, newest first.
func Jobs(ctx context.Context, s *store.Store, f job.Filter) (Page, error) {
	f.States = f.Possible()
	args, at, limit, err := listArguments(f)
	if err != nil {
		return Page{}, err
	}
	list, full, until, err := readPage(ctx, s, f, args, at, limit)
	if err != nil {
		return Page{}, text.Wrap(err, "list jobs")
	}
	return pageOf(list, full, until, limit), nil
}

// listArguments returns the arguments $1 to $15 of jobsSQL, the time in the cursor, and the page size.
func listArguments(f job.Filter) (args []any, at *time.Time, limit int, err error) {
	limit = PageSize(f.Limit)
	at, before, err := pageCursor(f.Cursor)
	return []any{store.Texts(f.States), store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), store.Some(f.Pipeline), store.Some(f.Parent), store.Some(f.Since),
		at, before, limit, f.Current || f.WithChildren(), store.Some(string(f.Reason)), store.Some(string(f.ErrorClass)), store.Some(f.ErrorCode), store.Some(f.Key)}, at, limit, err
}

// pageOf returns a page with the cursor for the next one.
func pageOf(list []job.JobRow, full bool, until *walkEnd, limit int) Page {
	page := Page{Jobs: list}
	switch {
	case until != nil:
		page.Cursor, page.Searched = pageAfter(*until.At, until.ID), *until.At
	case full || len(list) == limit:
		last := list[len(list)-1]
		page.Cursor = pageAfter(last.CreatedAt, last.ID)
	}
	return page
}

// readPage reads a page, starting from the most selective condition: a pipeline, a rare end state or an open state. Without such a
// condition, it walks over all jobs.
func readPage(ctx context.Context, s *store.Store, f job.Filter, args []any, at *time.Time, limit int) (list []job.JobRow, full bool, until *walkEnd, err error) {
	if f.Current {
		list, full, err = currentJobs(ctx, s, f, args)
		return list, full, nil, err
	}
	pipeline, err := pipelineFor(ctx, s, f)
	if err != nil {
		return nil, false, nil, err
	}
	if pipeline != 0 {
		args[4] = pipeline
		list, full, err = rowsWithin(ctx, s, scanJob, jobBytes, jobsOfPipelineSQL, append(args, store.Some(f.Owner))...)
		return list, full, nil, err
	}
	list, full, found, err := rareJobs(ctx, s, f, args, at, limit)
	if err != nil || found {
		return list, full, nil, err
	}
	ids, rare, err := rareOpen(ctx, s, f, args[0].([]string))
	if err != nil {
		return nil, false, nil, err
	}
	if rare {
		list, full, err = rowsWithin(ctx, s, scanJob, jobBytes, openJobsSQL, append(args, ids, store.Some(f.Owner))...)
		return list, full, nil, err
	}
	return walkJobs(ctx, s, args, f.Owner, limit, jobsSQL, ownJobsSQL)
}

// exportJobsSQL reads every job in the caller's snapshot, oldest first.
const exportJobsSQL = `select ` + jobColumns + ` from trapeze.job order by created_at, id`

// ExportJobs passes every job to do, one at a time. It runs in the caller's transaction.
func ExportJobs(ctx context.Context, s *store.Store, db store.DB, do func(job.JobRow) error) error {
	return each(ctx, s, db, scanJob, do, exportJobsSQL)
}

// Snapshot runs do in a read-only transaction that uses a single snapshot of the database.
func Snapshot(ctx context.Context, s *store.Store, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.Pool(), s.Begin(" isolation level repeatable read, read only"), do)
}

func each[T any](ctx context.Context, s *store.Store, db store.DB, scan pgx.RowToFunc[T], do func(T) error, sql string, args ...any) error {
	result, err := db.Query(ctx, s.In(sql), args...)
	if err != nil {
		return err
	}
	defer result.Close()
	for result.Next() {
		one, err := scan(result)
		if err != nil {
			return err
		}
		if err := do(one); err != nil {
			return err
		}
	}
	return result.Err()
}

func scanJob(row pgx.CollectableRow) (j job.JobRow, err error) {
	var (
		p             job.Progress
		args, planned []byte
		result        []byte
	)
	err = row.Scan(&j.ID, &j.Kind, &j.Lane, &j.Subject, &j.Key, &j.State, &j.IsCurrent, &j.Priority, &j.Attempt, &j.MaxAttempts,
		&j.Crashes, &j.Fence, &j.Epoch, &j.Pod, &j.PipelineID, &j.ParentID, &j.Step, &args, &planned, &result, &j.Outcome,
		&j.Reason, &j.Error, &p.Done, &p.Total, &p.Message, &j.UniqueKey, &j.Submitter, &j.CreatedAt, &j.RunAfter,
		&j.StartedAt, &j.FinishedAt, &j.CancelRequested, &j.EventNo, &j.GroupID, &j.ChildNo, &j.ErrorClass, &j.ErrorCode, &j.Replaced)
	j.Args, j.Planned, j.Result = json.RawMessage(args), planned, result
	if p != (job.Progress{}) {
		j.Progress = &p
	}
	return j, err
}

// foreignLaneSQL finds the lane for a job whose kind has no handler in this process, or whose lane this process does not know. Plan: lane_kinds_pkey,
// lanes_pkey; lane_templates if the lane does not exist.
const foreignLaneSQL = `
select coalesce((select lane from trapeze.lane_kinds where kind = $1), $3),
	$2 = '' or exists (select from trapeze.lane_rules($2)), $2 = '' or exists (select from trapeze.lanes n where n.name = $2 and n.idle_since is null)`

// FoundLane is the result of [LaneFor].
type FoundLane struct {
	Lane   string // the default lane of the kind
	Exists bool   // the named lane exists, or it matches a template; also true if no lane is named
	Ready  bool   // it exists and stays; otherwise, jobs for it must be parked as due
}

// LaneFor returns the default lane of a kind, or other if the kind has none, and whether the lane called name exists. It runs in the caller's
// transaction, which must not wait for a second connection, unless db is nil.
func LaneFor(ctx context.Context, s *store.Store, db store.DB, kind, name, other string) (FoundLane, error) {
	found, err := store.QueryOrRows(ctx, s, db, pgx.RowToStructByPos[FoundLane], foreignLaneSQL, kind, name, other)
	if err != nil {
		return FoundLane{}, fmt.Errorf("look up the lane of %s: %w", kind, err)
	}
	return found[0], nil
}

// ownerSQL reads a job's submitter, which never changes. Plan: jobs_pkey, one row.
const ownerSQL = `select submitter from trapeze.jobs where id = $1`

// Owner returns the submitter of a job, or of a pipeline if id is the id of the pipeline's first job. Steps and branches inherit their
// submitter. Owner returns [job.ErrNotFound] if the job does not exist.
func Owner(ctx context.Context, s *store.Store, id int64) (string, error) {
	return Row(ctx, s, fmt.Sprintf("read job %d", id), pgx.RowTo[string], ownerSQL, id)
}

// enqueuedSQL lists the jobs of one kind, or all jobs if $1 is null, oldest first. It is meant for tests, whose tables are small. Plan:
// jobs_by_age, to its end.
const enqueuedSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where $1::text is null or kind = $1 order by created_at, id`

// Enqueued returns the jobs of one kind, or of all kinds if kind is empty, oldest first. It reads the tables in the given schema, through
// the connection or transaction db.
func Enqueued(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, schema, kind string) ([]job.JobRow, error) {
	rows, err := db.Query(ctx, store.InSchema(schema, enqueuedSQL), store.Some(kind))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanJob)
}

// notesSQL reads the progress reported by the given jobs and by the latest jobs of the given pipelines. Plan: primary key lookups,
// jobs_of_pipeline.
const notesSQL = `
select 0::bigint, g.id, g.done, g.total, g.message from unnest($1::bigint[]) as w(id) join trapeze.job_progress g on g.id = w.id
union all
select w.id, p.last_job, p.progress_done, p.progress_total, p.progress_message
from unnest($2::bigint[]) as w(id) join trapeze.pipeline p on p.id = w.id
union all
select w.id, g.id, g.done, g.total, g.message from unnest($2::bigint[]) as w(id) join trapeze.job_progress g on g.id = w.id
where not exists (select from trapeze.pipelines p where p.id = w.id)`

// Note is the progress that a job has reported.
type Note struct {
	Pipeline int64 // the pipeline for which the progress was requested, or 0 if it was requested for a job
	Job      int64
	job.Progress
}

// Notes returns the progress reported by the given jobs and by the latest jobs of the given pipelines. It omits jobs that have not reported
// any.
func Notes(ctx context.Context, s *store.Store, jobs, pipelines []int64) ([]Note, error) {
	list, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (n Note, err error) {
		return n, row.Scan(&n.Pipeline, &n.Job, &n.Done, &n.Total, &n.Message)
	}, notesSQL, orNone(jobs), orNone(pipelines))
	return list, text.Wrap(err, "read the progress of jobs")
}

// withinBytes limits the amount of JSON that a response holds in memory; the last job may exceed it. Arguments and results may each be up
// to 1 MiB, and plans even larger. Without the limit, a page of a thousand jobs could exhaust the memory of the process.
const withinBytes = 8 << 20

func jobBytes(j job.JobRow) int        { return len(j.Args) + len(j.Result) + len(j.Planned) }
func pipelineBytes(p job.Pipeline) int { return len(p.Planned) }

var errFull = errors.New("enough for one page")

// rowsWithin is like [store.Rows], but ends the page when its rows exceed the size limit. In that case, full is true, and more rows may
// follow.
func rowsWithin[T any](ctx context.Context, s *store.Store, scan pgx.RowToFunc[T], bytes func(T) int, sql string, args ...any) (list []T, full bool, err error) {
	var from pgx.CollectableRow
	left := 0
	_, err = store.Rows(ctx, s, func(row pgx.CollectableRow) (none struct{}, err error) {
		if row != from { // the first row of this attempt
			from, list, left = row, nil, withinBytes
		}
		if left <= 0 {
			return none, errFull
		}
		one, err := scan(row)
		list, left = append(list, one), left-bytes(one)
		return none, err
	}, sql, args...)
	if errors.Is(err, errFull) {
		return list, true, nil
	}
	return list, false, err
}

// leanJobs returns a function that scans jobs. Once a response exceeds the size limit, the function omits arguments, results and plans. It
// is used for responses that must contain all their jobs.
func leanJobs() pgx.RowToFunc[job.JobRow] {
	left := withinBytes
	return func(row pgx.CollectableRow) (job.JobRow, error) {
		j, err := scanJob(row)
		if left -= jobBytes(j); left < 0 {
			j.Args, j.Result, j.Planned = nil, nil, nil
		}
		return j, err
	}
}

// earliest and latest bound the times in a cursor. JSON can represent all times in this range, and PostgreSQL rejects some times outside
// it.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// PageSize returns the number of rows on a page of a list for which a caller has set a limit: 50 by default, at most 1000.
func PageSize(limit int) int {
	if limit <= 0 {
		return 50
	}
	return min(limit, 1000)
}

// pageAfter returns the cursor of the page that starts after the row with the given creation time and id.
func pageAfter(at time.Time, id int64) string { return fmt.Sprintf("%d.%d", at.UnixMicro(), id) }

// pageCursor parses a page cursor. It returns the creation time and id of the row after which the page starts. If the cursor is invalid, it
// returns [job.ErrInvalid].
func pageCursor(cursor string) (at *time.Time, id int64, err error) {
	if cursor == "" {
		return nil, 0, nil
	}
	moment, number, _ := strings.Cut(cursor, ".")
	micros, err1 := strconv.ParseInt(moment, 10, 64)
	id, err2 := strconv.ParseInt(number, 10, 64)
	t := time.UnixMicro(micros)
	if errors.Join(err1, err2) != nil || t.Before(earliest) || t.After(latest) {
		return nil, 0, fmt.Errorf("%w: cursor %.100q", job.ErrInvalid, cursor)
	}
	return &t, id, nil
}

// overSQL reports which of the given jobs have ended and which do not exist. The lookups in live and parked find the jobs that are waiting
// or running. Only the remaining jobs are searched for in the history, which has one table per day. A job that an operator has retried is
// in live or parked again, even though done contains its earlier epochs. Plan: primary key and the id index of done lookups; with exists in the
// select list, PostgreSQL 18 would hash whole tables.
const overSQL = `
select w.id, (select true from trapeze.done d where d.id = w.id limit 1) is null as gone
from unnest($1::bigint[]) as w(id)
where (select true from trapeze.live l where l.id = w.id limit 1) is null
	and (select true from trapeze.parked p where p.id = w.id limit 1) is null`

// jobsOfSQL reads the given jobs, each in its latest epoch. Plan: as for jobSQL, for each id.
const jobsOfSQL = `
select ` + jobColumns + ` from unnest($1::bigint[]) as w(wanted) cross join lateral (
	select ` + jobColumns + ` from ` + jobOf + ` job where id = w.wanted order by epoch desc limit 1
) j`

// readAtOnce is the maximum number of finished jobs that one statement reads. It is small because each job's result may take up one
// megabyte.
const readAtOnce = 100

// Over returns the jobs with the given ids that have ended, and the ids for which there is no job. One statement checks all ids. The
// finished jobs are then read with one statement per hundred jobs.
func Over(ctx context.Context, s *store.Store, ids []int64) (over []job.JobRow, gone []int64, err error) {
	type answer struct {
		ID   int64
		Gone bool
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[answer], overSQL, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("read the state of %d jobs: %w", len(ids), err)
	}
	var ended []int64
	for _, a := range found {
		if a.Gone {
			gone = append(gone, a.ID)
		} else {
			ended = append(ended, a.ID)
		}
	}
	for part := range slices.Chunk(ended, readAtOnce) {
		list, err := store.Rows(ctx, s, scanJob, jobsOfSQL, part)
		if err != nil {
			return nil, nil, fmt.Errorf("read %d jobs: %w", len(part), err)
		}
		for _, j := range list {
			if j.State.Terminal() { // the job has not been retried in the meantime
				over = append(over, j)
			}
		}
	}
	return over, gone, nil
}

// currentJobsSQL lists the current runs of all subjects, newest first, from subjects. If $16 is not null, it lists only the runs of
// that submitter. currentRunSQL reads the current runs of a single subject. While a job with a subject is running, both statements skip the
// rows that racing admissions left for the subject's earlier runs. See TestAdmissionStartedBeforeLastRun. The offset 0
// prevents the planner from walking over all jobs. Plan: subjects_by_subject, or one pass over subjects, which has one or two rows
// per subject. For each row, jobs_pkey and, unless the job is running, subjects_one_guard; a sort; the view for the listed jobs, or
// for all of them if the filter has a state, a lane or an error.
const (
	currentJobsSQL = currentRunsHead + `($2::text is null or c.kind = $2) and ($4::text is null or c.subject = $4)` + currentRunsTail
	currentRunSQL  = currentRunsHead + `c.kind = $2::text and c.subject = $4::text` + currentRunsTail

	currentRunsHead = `
select ` + jobColumns + ` from unnest(array(
	select j.id from trapeze.subjects c cross join lateral (select * from trapeze.jobs where id = ` + latestRun + ` offset 0) j
	where `
	currentRunsTail = ` and ($5::bigint is null or j.pipeline_id = $5)
		and ($6::bigint is null or j.parent_id = $6) and ($7::timestamptz is null or j.created_at >= $7)
		and ($8::timestamptz is null or (j.created_at, j.id) < ($8, $9::bigint)) and ($11 or j.group_id is null)
		and ($15::text is null or j.key = $15) and ($16::text is null or j.submitter = $16 and j.submitter <> '')
		and (c.state = 'held' or not exists (select from trapeze.subjects r
			where r.kind = c.kind and r.subject = c.subject and r.state = 'held'
			and (select true from trapeze.live l where l.id = r.job_id and l.state = 'running' limit 1) offset 0))
	order by j.created_at desc, j.id desc limit case when coalesce($3::text, $12::text, $13::text, $14::text) is null
		and $1::text[] is null then $10::bigint end
)) as named(job_id) cross join lateral (select * from ` + jobOf + ` one where one.id = named.job_id offset 0) job
where ($1 is null or state = any($1)) and ($3 is null or lane = $3) and ($12 is null or reason = $12)
	and ($13 is null or error_class = $13) and ($14 is null or error_code = $14)` + jobsOrdered
)

// latestRun is the id of the latest run of row c of subjects: the job that holds the guard if it is running, or has ended; otherwise
// the job before it.
const latestRun = `case when c.state = 'free' or (select l.state from trapeze.live l where l.id between c.job_id and c.job_id limit 1) = 'running'
		then c.job_id else c.previous_job end`

// namedRunSQL reports whether subjects contains a run of a subject. Plan: subjects_by_subject.
const namedRunSQL = `select true from trapeze.subjects c where c.kind = $1 and c.subject = $2 limit 1`

// currentJobs reads a page of current runs. If the newest run for a subject was deleted or pruned, it returns the subject's newest finished
// run that still exists.
func currentJobs(ctx context.Context, s *store.Store, f job.Filter, args []any) (list []job.JobRow, full bool, err error) {
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
	return []job.JobRow{last}, false, err
}

// matchesFilter reports whether j matches the rest of the filter. The caller has already matched the kind, subject and owner.
func matchesFilter(f job.Filter, j job.JobRow) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, j.State)) && (f.Lane == "" || f.Lane == j.Lane) && (f.Key == "" || f.Key == j.Key) && !j.CreatedAt.Before(f.Since) &&
		(f.Pipeline == 0 || f.Pipeline == j.PipelineID) && (f.Parent == 0 || j.ParentID != nil && f.Parent == *j.ParentID) &&
		equalsIfSet(f.Reason, j.Reason) && equalsIfSet(f.ErrorClass, j.ErrorClass) && equalsIfSet(f.ErrorCode, j.ErrorCode)
}

// equalsIfSet reports whether a job's value equals the filter's value or the filter has none.
func equalsIfSet[T ~string](asked T, is *T) bool { return asked == "" || is != nil && *is == asked }

// lastFinishedFor is the time limit for finding a subject's newest finished run, because no index serves that search.
const lastFinishedFor = 10 * time.Second

// lastFinished returns the newest finished job with a subject, or [job.ErrNotFound].
func lastFinished(ctx context.Context, s *store.Store, kind, subject, owner string) (job.JobRow, error) {
	f := job.Filter{Kind: kind, Subject: subject, Owner: owner, Children: new(true), States: []job.State{job.Succeeded, job.Failed, job.Cancelled}, Limit: 1}
	for began := time.Now(); ; {
		page, err := Jobs(ctx, s, f)
		if err != nil {
			return job.JobRow{}, err
		}
		if len(page.Jobs) > 0 {
			return page.Jobs[0], nil
		}
		if f.Cursor = page.Cursor; f.Cursor == "" || time.Since(began) > lastFinishedFor {
			return job.JobRow{}, fmt.Errorf("current run of %s for subject %q: %w", kind, subject, job.ErrNotFound)
		}
	}
}

// Current returns the current run of a subject: the running job or, if none is running, the job that ran last. If owner is not empty,
// Current considers only that submitter's jobs. If the last run was deleted or pruned, it returns the newest finished run that still
// exists, or [job.ErrNotFound].
func Current(ctx context.Context, s *store.Store, kind, subject, owner string) (job.JobRow, error) {
	page, err := Jobs(ctx, s, job.Filter{Kind: kind, Subject: subject, Owner: owner, Current: true, Limit: 1})
	if err == nil && len(page.Jobs) == 0 {
		err = fmt.Errorf("current run of %s for subject %q: %w", kind, subject, job.ErrNotFound)
	}
	if err != nil {
		return job.JobRow{}, err
	}
	return page.Jobs[0], nil
}
