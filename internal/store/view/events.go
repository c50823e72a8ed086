package view

import (
	"context"
	"encoding/json"
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
	return list, text.Wrap(err, "read events of job %d", id)
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
	return list, text.Wrap(err, "read events")
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
	err = row.Scan(&e.Cursor, &e.Job, &e.EventNo, &e.At, &e.From, &e.To, &e.Actor, &e.PodID, &e.Pod, &e.Fence, &e.Level,
		&e.Event, &e.Message, &fields, &e.Remote)
	e.Fields = json.RawMessage(fields)
	return e, err
}

// feedNowSQL reads the current position of the feed: the database history, the transactions that a cursor may contain, and the events that
// are currently visible. Plan: job_events_in_commit_order at its ends, in each retained day.
const feedNowSQL = `
select coalesce(left((select trapeze.history())::text, 8), ''), pg_snapshot_xmax(pg_current_snapshot()), pg_current_snapshot()::text,
	coalesce((select e.xid from trapeze.job_events e order by e.xid limit 1), '0'::xid8),
	coalesce((select e.xid from trapeze.job_events e order by e.xid desc limit 1), '0'::xid8),
	coalesce(l.xid, '0'::xid8), coalesce(l.job, 0), coalesce(l.event_no, 0)
from (values (1)) as one(row) left join lateral (
	select e.xid, e.job, e.event_no from trapeze.job_event e
	where e.xid = (select v.xid from trapeze.job_events v where v.xid < pg_snapshot_xmin(pg_current_snapshot()) order by v.xid desc limit 1)
	order by coalesce(e.job, 0) desc, e.event_no desc limit 1
) l on true`

// FeedNow is the feed's position at one point in time.
type FeedNow struct {
	Epoch  string   // identifies the history; it changes when a dump is restored or a standby is promoted
	Next   uint64   // no transaction with this id or a higher one has ended yet
	Oldest uint64   // the first transaction with stored events, or 0 if there is none
	Seen   Seen     // the transactions that are currently visible
	Last   Position // position of the latest event that readers can already see
}

// ReadFeedNow returns the current position of the feed.
func ReadFeedNow(ctx context.Context, s *store.Store) (now FeedNow, err error) {
	var snapshot string
	var latest uint64
	found, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (n FeedNow, err error) {
		return n, row.Scan(&n.Epoch, &n.Next, &snapshot, &n.Oldest, &latest, &n.Last.Xid, &n.Last.Job, &n.Last.EventNo)
	}, feedNowSQL)
	if err != nil {
		return now, fmt.Errorf("read the feed position: %w", err)
	}
	now = found[0]
	if now.Epoch == "" {
		history, err := s.SettleHistory(ctx)
		if err != nil {
			return now, fmt.Errorf("read the feed position: %w", err)
		}
		now.Epoch = history[:8]
	}
	now.Seen, err = Seen{}.at(snapshot, latest)
	return now, err
}

// feedPageSQL reads the history in the same order as feedSQL, for all jobs or for one submitter. Plan: job_events_in_commit_order;
// jobs_pkey.
const feedPageSQL = `
select ` + newsColumns + `, ''
from trapeze.job_event e left join trapeze.jobs j on j.id = e.job
where e.xid >= $1::text::xid8 and (e.xid, coalesce(e.job, 0), coalesce(e.event_no, 0)) > ($1::text::xid8, $2::bigint, $3::int)
	and e.xid < pg_snapshot_xmin(pg_current_snapshot()) and ($4::text is null or j.submitter = $4)
order by e.xid, coalesce(e.job, 0), e.event_no limit $5`

// FeedPage returns the history after a position, for all jobs or for one submitter, in the order of transaction ids. It stops at the
// horizon below which no new transaction can appear.
func FeedPage(ctx context.Context, s *store.Store, after Position, submitter string, limit int) ([]News, error) {
	return Rows(ctx, s, "read the feed", scanNews, feedPageSQL, strconv.FormatUint(after.Xid, 10), after.Job, after.EventNo, store.Some(submitter), limit)
}

// feedLagSQL returns the age of the oldest event above the horizon. Plan: job_events_in_commit_order in each retained day.
const feedLagSQL = `
select coalesce(extract(epoch from clock_timestamp() - (
	select e.at from trapeze.job_events e where e.xid >= pg_snapshot_xmin(pg_current_snapshot()) order by e.xid limit 1)), 0)::float8`

// FeedLag returns how long the global feed has been held up by an open transaction anywhere in the cluster, or 0 if it is not held up.
func FeedLag(ctx context.Context, s *store.Store) (time.Duration, error) {
	seconds, err := One(store.Rows(ctx, s, pgx.RowTo[float64], feedLagSQL))
	return time.Duration(max(0, seconds) * float64(time.Second)), text.Wrap(err, "read the lag of the feed")
}

// News is a feed event with additional fields that are used to route and authorize it.
type News struct {
	job.Event
	Xid       uint64
	No        int        // the EventNo or, for an event without a job, its number within the transaction
	Pipeline  int64      // 0 if the event has no job, or if the job no longer exists
	Submitter string     // submitter of the job
	Status    job.Status // the pipeline's current status if the event may have finished or reopened the pipeline; otherwise empty
}

// Position is an event's position in the global feed.
type Position struct {
	Xid     uint64
	Job     int64
	EventNo int
}

// Position returns the event's position in the global feed.
func (n News) Position() Position {
	p := Position{Xid: n.Xid, EventNo: n.No}
	if n.Job != nil {
		p.Job = *n.Job
	}
	return p
}

// String returns p as the cursor of its event.
func (p Position) String() string { return fmt.Sprintf("%d.%d.%d", p.Xid, p.Job, p.EventNo) }

// After reports whether p comes after q.
func (p Position) After(q Position) bool {
	if p.Xid != q.Xid {
		return p.Xid > q.Xid
	}
	if p.Job != q.Job {
		return p.Job > q.Job
	}
	return p.EventNo > q.EventNo
}

// newsColumns lists the columns of an event e with job j, except for the pipeline's status.
const newsColumns = eventColumns + `, e.xid, coalesce(e.event_no, 0), coalesce(j.pipeline_id, 0), coalesce(j.submitter, '')`

// newsStatus is the pipeline's status if the event finishes or reopens a job outside any fan-out; otherwise it is empty.
const newsStatus = `coalesce(case when ('{succeeded,failed,cancelled}'::text[] && array[e.from_state, e.to_state])
		and coalesce(j.group_id, 0) = 0 and coalesce(j.child_no, 0) = 0 then ` + statusOfPipeline + ` end, '')`

// statusOfPipeline is the current status of job j's pipeline.
const statusOfPipeline = `coalesce((select p.status from trapeze.pipeline p where p.id = j.pipeline_id),
	(select case when v.state in ('succeeded', 'failed', 'cancelled') then v.state else 'running' end
	from trapeze.job v where v.id = j.pipeline_id order by v.epoch desc limit 1))`

// newsSQL reads the events of some jobs, or of the jobs in some pipelines, that were written by transactions outside a given set. The
// events of each job are in order. If there are no events, it returns a single row without an event. It reads only transactions that
// started after the set was read or were still open at that time. As a result, it reads nothing twice, and a transaction that stays open
// costs nothing. Plan: job_events_in_commit_order in each retained day; jobs_pkey for each event, and primary key lookups if an event may
// end a pipeline.
const newsSQL = `
with fresh as materialized (
	select v.job, v.event_no, v.jobs, v.event_nos, v.fences, v.xid, v.at, v.fence, v.pod, v.from_state, v.to_state, v.event, v.actor,
		v.level, v.message, v.fields
	from trapeze.job_events v where v.xid > $1::text::xid8
	union all
	select v.job, v.event_no, v.jobs, v.event_nos, v.fences, v.xid, v.at, v.fence, v.pod, v.from_state, v.to_state, v.event, v.actor,
		v.level, v.message, v.fields
	from unnest($2::text[]) as o(xid) join trapeze.job_events v on v.xid = o.xid::xid8
	where pg_visible_in_snapshot(o.xid::xid8, pg_current_snapshot())
), each as (
	select coalesce(f.job, b.job) as job, coalesce(f.event_no, b.event_no) as event_no, f.xid, f.at, coalesce(f.fence, b.fence) as fence,
		f.pod, f.from_state, f.to_state, f.event, f.actor, f.level, f.message, f.fields
	from fresh f left join lateral unnest(f.jobs, f.event_nos, f.fences) as b(job, event_no, fence) on true
), told as (
	select e.job as told_job, e.event_no as told_no, ` + newsColumns + `, ` + newsStatus + `
	from each e join trapeze.jobs j on j.id = e.job
	where e.job in (select unnest($3::bigint[])) or j.pipeline_id in (select unnest($4::bigint[]))
)
select pg_current_snapshot()::text, coalesce((select f.xid from fresh f order by f.xid desc limit 1), '0'::xid8), t.*
from (values (1)) as one(row) left join told t on true
order by t.told_job, t.told_no`

// ReadNews returns new events of the given jobs and pipelines, for a reader that has already seen the transactions in seen. Each job's
// events are in order. ReadNews also returns the set of transactions that the reader has seen after this call.
func ReadNews(ctx context.Context, s *store.Store, seen Seen, jobs, pipelines []int64) ([]News, Seen, error) {
	upto, open := seen.args()
	found, err := store.Rows(ctx, s, scanTold, newsSQL, upto, open, orNone(jobs), orNone(pipelines))
	if err != nil {
		return nil, seen, fmt.Errorf("read feed events: %w", err)
	}
	return gather(seen, found)
}

func orNone(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

// newsRow is a row of newsSQL, including the snapshot in which it was read.
type newsRow struct {
	snapshot string
	upto     uint64
	news     *News
}

func gather(seen Seen, found []newsRow) (list []News, now Seen, err error) {
	now, err = seen.at(found[0].snapshot, found[0].upto)
	for _, one := range found {
		if one.news != nil {
			list = append(list, *one.news)
		}
	}
	return list, now, err
}

func scanTold(row pgx.CollectableRow) (t newsRow, err error) {
	var id *int64
	var n News
	event := n.columns()
	// If there is no event, only the first columns of the row can be scanned. A nil destination skips a column.
	err = row.Scan(append([]any{&t.snapshot, &t.upto, &id, nil}, make([]any, len(event))...)...)
	if err != nil || id == nil {
		return t, err
	}
	t.news = &n
	return t, row.Scan(append(make([]any, 4), event...)...)
}

func scanNews(row pgx.CollectableRow) (n News, err error) { return n, row.Scan(n.columns()...) }

// columns returns the scan destinations for newsColumns.
func (n *News) columns() []any {
	return []any{&n.Cursor, &n.Job, &n.EventNo, &n.Event.At, &n.From, &n.To, &n.Actor, &n.PodID, &n.Pod, &n.Fence, &n.Level, &n.Event.Event,
		&n.Message, (*[]byte)(&n.Fields), &n.Remote, &n.Xid, &n.No, &n.Pipeline, &n.Submitter, &n.Status}
}

// pipelineNewsSQL reads the unseen events of one pipeline, like newsSQL, but finds them through the pipeline's jobs. It reads no events of
// other pipelines, regardless of the age of the reader's position. Within the transactions bounded by $4 and $5, it starts after event $7 of job $6.
// Plan: as for jobEventsSQL, for each job of the pipeline.
const pipelineNewsSQL = `
with of as materialized (
	select id from trapeze.jobs where id = $1 union all select id from trapeze.jobs where pipeline_id = $1 and step > 0
), ` + historySQL + `, told as (
	select e.job as told_job, e.event_no as told_no, ` + newsColumns + `, ` + newsStatus + `
	from e join trapeze.jobs j on j.id = e.job
	where (e.xid > $2::text::xid8 or e.xid = any($3::text[]::xid8[]))
		and ($4::text is null or e.xid <= $4::text::xid8 and e.xid <> all ($5::text[]::xid8[]) and (e.job, e.event_no) > ($6::bigint, $7::int))
	order by e.job, e.event_no limit $8
)
select pg_current_snapshot()::text, coalesce((select e.xid from e order by e.xid desc limit 1), '0'::xid8), t.*
from (values (1)) as one(row) left join told t on true
order by t.told_job, t.told_no`

// PipelineNews returns up to limit new events of one pipeline, for a reader that has already seen the transactions in seen. The events are
// ordered by job and event number. If there are no more events, PipelineNews also returns the set of transactions that the reader has seen
// after this call. If within is not nil, it reads only that set of transactions and starts after the given event.
func PipelineNews(ctx context.Context, s *store.Store, id int64, seen Seen, within *Seen, after Position, limit int) ([]News, Seen, error) {
	upto, open := seen.args()
	var bound *string
	except := []string{}
	if within != nil {
		bound = new(string)
		*bound, except = within.args()
	}
	found, err := store.Rows(ctx, s, scanTold, pipelineNewsSQL, id, upto, open, bound, except, after.Job, after.EventNo, limit)
	if err != nil {
		return nil, seen, fmt.Errorf("read feed events of pipeline %d: %w", id, err)
	}
	list, now, err := gather(seen, found)
	if within != nil {
		now = *within
	}
	return list, now, err
}

// Seen is the set of transactions whose events a reader has seen. It contains all transactions up to Upto, except for the few that were
// still open when the reader last read. With this set, a reader of new events receives each event exactly once, regardless of the order in
// which transactions commit, and never waits for open transactions or reads anything twice. Upto is a transaction that has written an
// event, so a server crash cannot undo it.
type Seen struct {
	Upto uint64
	Open []uint64
}

// Has reports whether the events written by a transaction have been seen.
func (s Seen) Has(xid uint64) bool { return xid <= s.Upto && !slices.Contains(s.Open, xid) }

// With returns the union of s and t.
func (s Seen) With(t Seen) Seen {
	both := Seen{Upto: max(s.Upto, t.Upto)}
	for _, xid := range slices.Concat(s.Open, t.Open) {
		if !s.Has(xid) && !t.Has(xid) && !slices.Contains(both.Open, xid) {
			both.Open = append(both.Open, xid)
		}
	}
	return both
}

// at returns the set of transactions that are visible in a snapshot, which has the form xmin:xmax:xip,…. upto is the latest transaction
// that wrote events.
func (s Seen) at(snapshot string, upto uint64) (Seen, error) {
	now := Seen{Upto: max(s.Upto, upto)}
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q: want three parts", snapshot)
	}
	for text := range strings.SplitSeq(parts[2], ",") {
		if text == "" {
			continue
		}
		xid, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return s, fmt.Errorf("snapshot %q: %w", snapshot, err)
		}
		if xid <= now.Upto {
			now.Open = append(now.Open, xid)
		}
	}
	return now, nil
}

// String formats s as numbers separated by underscores, which need no escaping in a URL.
func (s Seen) String() string {
	var b strings.Builder
	b.WriteString(strconv.FormatUint(s.Upto, 10))
	for _, xid := range s.Open {
		b.WriteString("_" + strconv.FormatUint(xid, 10))
	}
	return b.String()
}

// maxOpen limits the number of open transactions in a cursor. PostgreSQL servers typically have hundreds of connections, and rarely
// thousands.
const maxOpen = 10_000

// ParseSeen parses the output of [Seen.String]. It returns [job.ErrInvalid] if the text is invalid.
func ParseSeen(text string) (s Seen, err error) {
	for i, part := range strings.Split(text, "_") {
		xid, err := strconv.ParseUint(part, 10, 64)
		switch {
		case err != nil || i > maxOpen || i > 0 && xid > s.Upto:
			return Seen{}, fmt.Errorf("%w: transactions %.100q", job.ErrInvalid, text)
		case i == 0:
			s.Upto = xid
		default:
			s.Open = append(s.Open, xid)
		}
	}
	return s, nil
}

// args returns s as two statement arguments.
func (s Seen) args() (upto string, open []string) {
	open = make([]string, len(s.Open))
	for i, xid := range s.Open {
		open[i] = strconv.FormatUint(xid, 10)
	}
	return strconv.FormatUint(s.Upto, 10), open
}
