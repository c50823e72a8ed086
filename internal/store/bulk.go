package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// bulkFrom is the smallest number of jobs for which COPY is used. COPY is as fast as the single statement of [Store.Enqueue] at 100 jobs
// and 1.5 times as fast at 2,000 (27 instead of 41 ms; two cores, PostgreSQL 15, 2026-11-21), because it neither reads arrays nor inserts
// row by row.
const bulkFrom = 200

// bulkBegunSQL reads the values that all rows of a bulk insert share. It also reports whether any of the lanes requires approval, or any lane or kind
// limits the time until the start, which COPY cannot check row by row. Plan: lanes_pkey; kinds_pkey.
var bulkBegunSQL = newStatement(`
select now(), pg_current_xact_id(), exists (select from trapeze.lanes n where n.name = any(@asking::text[]) and n.requires_approval)
	or exists (select from trapeze.lanes n where n.name = any(@lanes::text[]) and n.start_within_s is not null)
	or exists (select from trapeze.kinds k where k.kind = any(@kinds::text[]) and k.start_within_ms is not null)`)

// bulkRestSQL inserts the jobs' events and their pipelines' rows. Plan: inserts only; reads no other table.
var bulkRestSQL = newStatement(`
with w as materialized (
	select * from unnest(@ids::bigint[], @actors::text[], @pipelines::bigint[], @names::text[]) as w(id, actor, pipeline_id, pipeline)
), named as (
	insert into trapeze.pipelines (id, name) select pipeline_id, pipeline from w where pipeline is not null on conflict (id) do nothing
)
insert into trapeze.job_events (jobs, event_nos, to_state, event, actor)
select array_agg(id), array_agg(1), 'pending', 'job.enqueued', actor from w group by actor`)

var (
	bulkJobs = []string{"id", "kind", "lane", "subject", "key", "args", "pipeline_id", "parent_id", "step", "planned", "max_attempts",
		"max_crashes", "submitter", "unique_key", "xid", "group_id", "child_no", "impaired", "ordered", "traceparent"}
	bulkLive   = []string{"id", "ready_at", "event_no", "priority", "unique_while", "lane", "kind", "subject", "state", "start_by"}
	bulkParked = []string{"id", "run_after", "event_no", "priority", "unique_while", "lane", "kind", "subject", "why", "start_by", "key"}
)

// Bulky reports whether [EnqueueBulk] is worthwhile for a list of jobs: the list is long enough, and no job in it starts on insert, is
// delayed or needs approval.
func Bulky(list []NewJob) bool {
	return len(list) >= bulkFrom && !slices.ContainsFunc(list, func(n NewJob) bool {
		return n.Starts || n.DelayMillis > 0 || n.NeedsApproval
	})
}

// EnqueueBulk is like [Store.Enqueue] for many jobs that all become pending. It fills the tables with COPY in one transaction. Jobs with a key wait
// for places, for which the caller must call [Store.AdmitNext]. Other jobs with a subject are parked as due, and must be promoted. If one of the lanes
// requires approval, or a lane or kind limits the time until the start, it inserts nothing and returns false; use [Store.Enqueue] instead.
func EnqueueBulk(ctx context.Context, s *Store, list []NewJob) (done bool, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) (err error) {
		done, err = enqueueBulkIn(ctx, s, tx, list, "key")
		return err
	})
	if err != nil {
		return false, fmt.Errorf("enqueue %d jobs: %w", len(list), err)
	}
	return done, nil
}

// startBy returns the latest time of the job's first start, or nil if there is no limit.
func (n *NewJob) startBy(submitted time.Time) *time.Time {
	if n.StartMillis == 0 {
		return nil
	}
	by := submitted.Add(time.Duration(n.StartMillis) * time.Millisecond)
	return &by
}

// EnqueueManyIn inserts jobs in the caller's transaction, with COPY if [Bulky] allows it and no lane requires approval or limits the time until the start, nor does a kind.
func EnqueueManyIn(ctx context.Context, s *Store, tx pgx.Tx, list []NewJob) error {
	if Bulky(list) {
		if done, err := enqueueBulkIn(ctx, s, tx, list, "scheduled"); err != nil || done {
			return err
		}
	}
	_, err := EnqueueIn(ctx, s, tx, list, false)
	return err
}

// enqueueBulkIn fills the tables. why is the reason for which jobs with a key are parked.
func enqueueBulkIn(ctx context.Context, s *Store, tx pgx.Tx, list []NewJob, why string) (done bool, err error) {
	var lanes, asking, kinds []string
	add := func(to *[]string, name string) {
		if len(*to) == 0 || (*to)[len(*to)-1] != name {
			*to = append(*to, name)
		}
	}
	for i := range list {
		if n := &list[i]; !n.Approved {
			add(&asking, n.Lane)
		}
		add(&lanes, list[i].Lane)
		add(&kinds, list[i].Kind)
	}
	var now time.Time
	var xid uint64
	var slow bool
	if err := tx.QueryRow(ctx, s.In(bulkBegunSQL.text), asking, lanes, kinds).Scan(&now, &xid, &slow); err != nil || slow {
		return false, err
	}
	ids, actors, pipelines, names := make([]int64, len(list)), make([]string, len(list)), make([]int64, len(list)), make([]*string, len(list))
	row := make([]any, 0, len(bulkJobs)) // reused for every row; values common to all rows are boxed once
	var shared any = xid
	_, err = tx.CopyFrom(ctx, pgx.Identifier{s.schema, "jobs"}, bulkJobs, pgx.CopyFromSlice(len(list), func(i int) ([]any, error) {
		n := &list[i]
		ids[i], actors[i], pipelines[i], names[i] = n.ID, n.actor(), n.pipeline(), n.Pipeline
		return append(row[:0], n.ID, n.Kind, n.Lane, n.Subject, Some(n.Key), n.Args, n.pipeline(), n.ParentID, n.Step, n.Planned, n.MaxAttempts,
			n.MaxCrashes, n.Submitter, n.UniqueKey, shared, n.Group, n.No, n.Impaired, n.Ordered, Some(n.Trace)), nil
	}))
	if err != nil {
		return false, err
	}
	var due, keyed, waiting []*NewJob
	for i := range list {
		switch n := &list[i]; {
		case n.Key != "":
			keyed = append(keyed, n)
		case n.Subject != "":
			waiting = append(waiting, n)
		default:
			due = append(due, n)
		}
	}
	place := func(table string, columns []string, jobs []*NewJob, reason string) {
		if err != nil || len(jobs) == 0 {
			return
		}
		var why any = reason
		_, err = tx.CopyFrom(ctx, pgx.Identifier{s.schema, table}, columns, pgx.CopyFromSlice(len(jobs), func(i int) ([]any, error) {
			n := jobs[i]
			return append(row[:0], n.ID, now, 1, n.Priority, n.UniqueWhile, n.Lane, n.Kind, n.Subject, why, n.startBy(now), Some(n.Key))[:len(columns)], nil
		}))
	}
	place("live", bulkLive, due, string(PlacedPending))
	place("parked", bulkParked, keyed, why)
	place("parked", bulkParked, waiting, "scheduled")
	if err != nil {
		return false, err
	}
	_, err = do(ctx, s, tx, bulkRestSQL, args{{"ids", ids}, {"actors", actors}, {"pipelines", pipelines}, {"names", names}})
	return err == nil, err
}
