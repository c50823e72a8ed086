package view

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const eventColumns = `e.xid::text || '.' || coalesce(e.job, 0) || '.' || coalesce(e.event_no, 0), e.job,
	case when e.job is not null then e.event_no end, e.at, e.from_state, e.to_state, e.actor, e.pod::text,
	(select p.name from trapeze.pods p where p.id = e.pod), e.fence, coalesce(e.level, 'info'), e.event, e.message, e.fields,
	coalesce((select true from trapeze.remote_workers r where r.pod = e.pod), false)`

// historySQL defines a CTE named e, which contains the history of the jobs in the CTE of(id) and has the columns of the view job_event. The
// history has two sources: events of a single job are found by the job's id, and events shared by several jobs, because one statement wrote
// them, are found by transaction id. The transaction ids come from the jobs' rows and from the events that ended a claim. Plan: primary key
// lookups, the id index of done; job_events_of_job and job_events_in_commit_order in each retained day.
const historySQL = `
commits as (
	select j.xid from trapeze.jobs j join of on of.id = j.id
	union select l.claim_xid from trapeze.live l join of on of.id = l.id
	union select x.xid from trapeze.done d join of on of.id = d.id cross join lateral (values (d.xid), (d.claim_xid)) x(xid)
	union select v.claim_xid from trapeze.job_events v join of on of.id = v.job
), e as (
	select v.job, v.event_no, v.xid, v.at, v.fence, v.pod, v.from_state, v.to_state, v.event, v.actor, v.level, v.message, v.fields
	from trapeze.job_events v join of on of.id = v.job
	union all
	select b.job, b.event_no, v.xid, v.at, b.fence, v.pod, v.from_state, v.to_state, v.event, v.actor, v.level, v.message, v.fields
	from commits c join trapeze.job_events v on v.xid = c.xid
	cross join lateral unnest(v.jobs, v.event_nos, v.fences) as b(job, event_no, fence)
	where b.job in (select id from of)
)`

// jobEventsSQL reads a job's history.
const jobEventsSQL = `with of as materialized (select $1::bigint as id), ` + historySQL + `
select ` + eventColumns + ` from e where e.event_no > $2 order by e.event_no limit $3`

// searchEventsSQL reads a job's history by searching all events. Plan: reads all retained events.
const searchEventsSQL = `select ` + eventColumns + ` from trapeze.job_event e
where e.job = $1 and e.event_no > $2 order by e.event_no limit $3`

// pipelineEventsSQL reads the history of all jobs in a pipeline, up to the same horizon as feedSQL.
const pipelineEventsSQL = `with of as materialized (
	select id from trapeze.jobs where id = $1 union all select id from trapeze.jobs where pipeline_id = $1 and step > 0
), ` + historySQL + `
select ` + eventColumns + ` from e
where (e.xid, e.job, coalesce(e.event_no, 0)) > ($2::text::xid8, $3::bigint, $4::int)
	and e.xid < pg_snapshot_xmin(pg_current_snapshot())
order by e.xid, e.job, e.event_no limit $5`

// feedSQL reads the whole history in the order of transaction ids. A job's events may be out of order; readers can sort them by number. The
// statement stops at the horizon below which no new transaction can appear, so a reader that continues from its last cursor misses nothing.
// Plan: job_events_in_commit_order.
const feedSQL = `select ` + eventColumns + ` from trapeze.job_event e
where e.xid >= $1::text::xid8 and (e.xid, coalesce(e.job, 0), coalesce(e.event_no, 0)) > ($1::text::xid8, $2::bigint, $3::int)
	and e.xid < pg_snapshot_xmin(pg_current_snapshot())
order by e.xid, coalesce(e.job, 0), e.event_no limit $4`

// hasGaps reports whether events are missing between the listed ones. It ignores missing events at the start, which retention may have
// deleted.
func hasGaps(list []job.Event) bool {
	for i := 1; i < len(list); i++ {
		if *list[i].EventNo != *list[i-1].EventNo+1 {
			return true
		}
	}
	return false
}

// JobEvents returns the history of a job after the event with the given number, or from the start if after is 0. If the job's row no longer
// exists, JobEvents returns only events that do not involve other jobs.
func JobEvents(ctx context.Context, s *store.Store, id int64, after, limit int) ([]job.Event, error) {
	list, err := store.Rows(ctx, s, scanEvent, jobEventsSQL, id, after, limit)
	if err == nil && hasGaps(list) {
		// The claim was ended by a pod of an earlier release, which did not store a reference to the event.
		list, err = store.Rows(ctx, s, scanEvent, searchEventsSQL, id, after, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read events of job %d: %w", id, err)
	}
	return list, nil
}

// Events returns the whole history, or that of one pipeline, in the order of transaction ids. It starts after the cursor, or at the
// beginning if the cursor is empty.
func Events(ctx context.Context, s *store.Store, pipeline int64, cursor string, limit int) ([]job.Event, error) {
	xid, id, no, err := parseCursor(cursor)
	if err != nil {
		return nil, err
	}
	var list []job.Event
	if pipeline != 0 {
		list, err = store.Rows(ctx, s, scanEvent, pipelineEventsSQL, pipeline, xid, id, no, limit)
	} else {
		list, err = store.Rows(ctx, s, scanEvent, feedSQL, xid, id, no, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return list, nil
}

// EventNo returns the event number contained in the cursor of a job's event.
func EventNo(cursor string) (int, error) {
	_, _, no, err := parseCursor(cursor)
	return no, err
}

// ParsePosition parses an event cursor as a position in the global feed. It returns [job.ErrInvalid] if the cursor is invalid.
func ParsePosition(cursor string) (p Position, err error) {
	xid, id, no, err := parseCursor(cursor)
	if err != nil {
		return p, err
	}
	p.Xid, err = strconv.ParseUint(xid, 10, 64)
	p.Job, p.EventNo = id, no
	return p, err
}

func parseCursor(cursor string) (xid string, id int64, no int, err error) {
	if cursor == "" {
		return "0", 0, 0, nil
	}
	parts := strings.Split(cursor, ".")
	if len(parts) == 3 {
		_, err1 := strconv.ParseUint(parts[0], 10, 64)
		n, err2 := strconv.ParseUint(parts[1], 10, 63)
		e, err3 := strconv.ParseUint(parts[2], 10, 31)
		if err1 == nil && err2 == nil && err3 == nil {
			return parts[0], int64(n), int(e), nil
		}
	}
	return "", 0, 0, fmt.Errorf("%w: cursor %.100q", job.ErrInvalid, cursor)
}

// exportEventsSQL reads the whole history in the caller's snapshot, job by job, with each job's events in order. It does not sort by
// transaction id, because a transaction that waited for the lock on a job's row may have a lower id than the one that wrote the preceding
// event.
const exportEventsSQL = `select ` + eventColumns + ` from trapeze.job_event e order by e.job nulls first, e.event_no, e.xid`

// ExportEvents passes the whole history to do, one event at a time. It runs in the caller's transaction.
func ExportEvents(ctx context.Context, s *store.Store, db store.DB, do func(job.Event) error) error {
	return each(ctx, s, db, scanEvent, do, exportEventsSQL)
}

func scanEvent(row pgx.CollectableRow) (e job.Event, err error) {
	var fields []byte
	err = row.Scan(&e.Cursor, &e.Job, &e.EventNo, &e.At, &e.From, &e.To, &e.Actor, &e.Boot, &e.Pod, &e.Fence, &e.Level,
		&e.Event, &e.Message, &fields, &e.Remote)
	e.Fields = json.RawMessage(fields)
	return e, err
}
