package view

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const jobColumns = columnsToArgs + `planned` + columnsFromResult

const (
	columnsToArgs = `id, kind, lane, subject, state, is_current, priority, attempt, max_attempts, crashes, fence, epoch,
	pod::text, pipeline_id, parent_id, step, args, `
	columnsFromResult = `, result, outcome, reason, error, progress_done, progress_total,
	progress_message, unique_key, submitter, created_at, run_after, started_at, finished_at, cancel_requested, event_no,
	group_id, child_no, error_class, error_code`
)

// jobSQL reads one job. Plan: as for jobOf, primary key lookups and the id index of done.
const jobSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where id = $1`

// Job returns one job, or [job.ErrNotFound]. It finds the job even while it is moving between tables.
func Job(ctx context.Context, s *store.Store, id int64) (job.Job, error) {
	found, err := store.Rows(ctx, s, scanJob, jobSQL, id)
	return jobIn(id, found, err)
}

// JobIn is like [Job], but runs in the caller's transaction, which must not wait for a second connection.
func JobIn(ctx context.Context, s *store.Store, tx pgx.Tx, id int64) (job.Job, error) {
	found, err := store.Query(ctx, s, tx, scanJob, jobSQL, id)
	return jobIn(id, found, err)
}

func jobIn(id int64, found []job.Job, err error) (job.Job, error) {
	if err != nil {
		return job.Job{}, fmt.Errorf("read job %d: %w", id, err)
	}
	if len(found) == 0 {
		return job.Job{}, fmt.Errorf("read job %d: %w", id, job.ErrNotFound)
	}
	return found[0], nil
}

// Page is one page of jobs, newest first. It may contain fewer jobs than the limit if the jobs are large or if only a few of many jobs
// match. Only the last page has an empty cursor.
type Page struct {
	Jobs     []job.Job
	Cursor   string    // cursor for the next page, or empty on the last page
	Searched time.Time // if the search stopped early, how far back it has read; otherwise zero
}

// jobsSQL lists jobs newest first, back to the job ($15, $16). Null arguments match everything. Plan: jobs_by_age backwards, from the
// cursor to that job or to the given time, stops at the limit.
const jobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where ` + jobsChosen

// ownJobsSQL lists one submitter's jobs, newest first. Plan: jobs_by_submitter backwards, otherwise as for jobsSQL.
const ownJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where submitter = $17 and submitter <> '' and ` + jobsChosen

// jobsChosen uses coalesce to compare times, so that the comparisons can bound an index scan. Conditions with "is null or" cannot do so,
// because the plan must be valid for all arguments.
const jobsChosen = jobsMatched + `
	and created_at >= coalesce($7::timestamptz, '-infinity') and (created_at, id) < (coalesce($8::timestamptz, 'infinity'), $9::bigint)
	and (created_at, id) >= (coalesce($15::timestamptz, '-infinity'), $16::bigint)` + jobsOrdered

const jobsMatched = `
	($1::text[] is null or state = any($1)) and ($2::text is null or kind = $2) and ($3::text is null or lane = $3)
	and ($4::text is null or subject = $4) and ($5::bigint is null or pipeline_id = $5) and ($6::bigint is null or parent_id = $6)
	and ($11 or group_id is null) and ($12::text is null or reason = $12) and ($13::text is null or error_class = $13)
	and ($14::text is null or error_code = $14)`

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
		return Page{}, fmt.Errorf("list jobs: %w", err)
	}
	return pageOf(list, full, until, limit), nil
}

// listArguments returns the arguments $1 to $14 of jobsSQL, the time in the cursor, and the page size.
func listArguments(f job.Filter) (args []any, at *time.Time, limit int, err error) {
	if limit = f.Limit; limit <= 0 {
		limit = 50
	}
	limit = min(limit, 1000)
	at, before, err := pageCursor(f.Cursor)
	return []any{store.Texts(f.States), store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), store.Some(f.Pipeline), store.Some(f.Parent), store.Some(f.Since),
		at, before, limit, f.Current || f.WithChildren(), store.Some(string(f.Reason)), store.Some(string(f.ErrorClass)), store.Some(f.ErrorCode)}, at, limit, err
}

// pageOf returns a page with the cursor for the next one.
func pageOf(list []job.Job, full bool, until *walkEnd, limit int) Page {
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
func readPage(ctx context.Context, s *store.Store, f job.Filter, args []any, at *time.Time, limit int) (list []job.Job, full bool, until *walkEnd, err error) {
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
	return walkJobs(ctx, s, args, f.Owner, limit)
}

// exportJobsSQL reads every job in the caller's snapshot, oldest first.
const exportJobsSQL = `select ` + jobColumns + ` from trapeze.job order by created_at, id`

// ExportJobs passes every job to do, one at a time. It runs in the caller's transaction.
func ExportJobs(ctx context.Context, s *store.Store, db store.DB, do func(job.Job) error) error {
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

func scanJob(row pgx.CollectableRow) (j job.Job, err error) {
	var (
		p             job.Progress
		args, planned []byte
		result        []byte
	)
	err = row.Scan(&j.ID, &j.Kind, &j.Lane, &j.Subject, &j.State, &j.IsCurrent, &j.Priority, &j.Attempt, &j.MaxAttempts,
		&j.Crashes, &j.Fence, &j.Epoch, &j.Pod, &j.PipelineID, &j.ParentID, &j.Step, &args, &planned, &result, &j.Outcome,
		&j.Reason, &j.Error, &p.Done, &p.Total, &p.Message, &j.UniqueKey, &j.Submitter, &j.CreatedAt, &j.RunAfter,
		&j.StartedAt, &j.FinishedAt, &j.CancelRequested, &j.EventNo, &j.GroupID, &j.ChildNo, &j.ErrorClass, &j.ErrorCode)
	j.Args, j.Planned, j.Result = json.RawMessage(args), planned, result
	if p != (job.Progress{}) {
		j.Progress = &p
	}
	return j, err
}

// foreignLaneSQL finds the lane for a job whose kind has no handler in this process.
const foreignLaneSQL = `
select coalesce((select lane from trapeze.lane_kinds where kind = $1), $3),
	$2 = '' or exists (select from trapeze.lanes where name = $2)`

// LaneFor returns the default lane of a kind, or other if the kind has none. exists reports whether the lane called name exists, and is
// true if name is empty. LaneFor runs in the caller's transaction, which must not wait for a second connection, unless db is nil.
func LaneFor(ctx context.Context, s *store.Store, db store.DB, kind, name, other string) (lane string, exists bool, err error) {
	type answer struct {
		Lane   string
		Exists bool
	}
	found, err := store.QueryOrRows(ctx, s, db, pgx.RowToStructByPos[answer], foreignLaneSQL, kind, name, other)
	if err != nil {
		return "", false, fmt.Errorf("look up the lane of %s: %w", kind, err)
	}
	return found[0].Lane, found[0].Exists, nil
}
