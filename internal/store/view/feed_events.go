package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

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
	return []any{&n.Cursor, &n.Job, &n.EventNo, &n.Event.At, &n.From, &n.To, &n.Actor, &n.Boot, &n.Pod, &n.Fence, &n.Level, &n.Event.Event,
		&n.Message, (*[]byte)(&n.Fields), &n.Remote, &n.Xid, &n.No, &n.Pipeline, &n.Submitter, &n.Status}
}
