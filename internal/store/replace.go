package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// A submission with a unique key can replace the args of the job that waits with the same key. It locks the key first ([ReserveKey]). This
// table lists the result by the state of the job that holds the key:
//
//	scheduled, or waiting for its subject or key   replaced: it keeps its position
//	pending, not claimed                           replaced: it keeps its position
//	awaiting approval                              replaced: it still awaits approval, in its next epoch
//	claimed: fetched, running                      created: the claim has freed the key
//	waiting for its retry, snoozed                 created: the first claim has freed the key
//	waiting for its children                       created: the first claim has freed the key
//	ended                                          created: the end has freed the key, or the submission takes it over
//	retried by an operator, not claimed since      replaced: the job holds the key again
//	any of these, if the job holds the key until   merged: the run of the job may have begun, so that it would not see the new args
//	its end (WhileActive)
//
// The job's unique_while is pending exactly in the states in which it can be replaced. While the key is locked, no claim takes the job, and the
// transaction that locked the key is the only one that replaces its args. Only an operator can end the job meanwhile. A job that needs approval
// for the new args is sent back for it. Its epoch then increases, so that an operator cannot approve args unseen (see [admin.Approve]).

// replaceSQL replaces the args of a waiting job whose key this transaction has locked, together with its planned steps and trace. It returns whether the
// job has not ended, whether it waits, whether it belongs to the same submitter, subject and key, whether it has planned steps that the new
// submission lacks, whether it must be approved, and in how many milliseconds it becomes due. A debounced job that is not due yet becomes due later. Its
// time is never before now because of a limit that has passed. Otherwise, the statement locks no row of live or parked: what happens to these does not
// depend on the args. Plan: primary key lookups.
var replaceSQL = newStatement(`
with place as materialized (
	(select l.lane, '' as why, l.unique_while from trapeze.live l where l.id = @holder limit 1)
	union all
	(select p.lane, p.why, p.unique_while from trapeze.parked p where p.id = @holder limit 1)
), waits as materialized (
	select p.why, j.submitter = @submitter as same_submitter, j.subject = @subject and j.key is not distinct from @key as same_line,
		j.planned is null or @planned::text is not null as same_steps,
		coalesce(@needs_approval, (select n.requires_approval from trapeze.lane_rules(p.lane) n), false) or p.why = 'approval' as asks
	from place p join trapeze.jobs j on j.id = @holder where p.unique_while = 'pending' limit 1
), replaced as (
	update trapeze.jobs j set args = @args::text::json, planned = @planned::text::json, traceparent = @traceparent, replaced = coalesce(j.replaced, 0) + 1
	from waits w where j.id = @holder and w.same_submitter and w.same_line and w.same_steps
	returning j.id, j.replaced, j.created_at
), moved as (
	update trapeze.parked p set run_after = least(now() + @debounce::bigint * interval '1 millisecond',
		greatest(r.created_at + @debounce_max::bigint * interval '1 millisecond', least(p.run_after, now())))
	from replaced r where p.id = r.id and p.why in ('scheduled', 'approval') and @debounce::bigint > 0
	returning p.run_after
), marked as (
	update trapeze.unique_keys u set replaced = r.replaced from replaced r where u.kind = @kind and u.key = @unique_key
), named as (
	insert into trapeze.pipelines (id, name) select r.id, @pipeline from replaced r where @pipeline::text is not null on conflict (id) do nothing
)
select exists (select from place), w.why is not null, coalesce(w.same_submitter, false), coalesce(w.same_line, false), coalesce(w.same_steps, false),
	coalesce(w.asks, false), coalesce((select greatest(0, ceil(extract(epoch from m.run_after - now()) * 1000)) from moved m), 0)::bigint
from (values (1)) one(row) left join waits w on true`)

// A throttled job becomes due no earlier than an interval after the start of the last throttled job of its unique key. That job has started, because
// it would otherwise hold the key, or it was cancelled before its start. No table stores the starts of keys: the rows of the jobs contain them, and go
// away with the jobs.
//
// throttleSQL returns the delay of a new job, in milliseconds. The key is locked, so that throttled_at has the order in which its jobs took it.
// Plan: jobs_throttled backwards, to the first job that has started; primary key lookups. markThrottledSQL marks the new job. Plan: jobs_pkey.
var (
	throttleSQL = newStatement(`
select greatest(0, ceil(extract(epoch from s.started_at - now()) * 1000) + @throttle::bigint)::bigint
from trapeze.jobs j cross join lateral (
	(select l.started_at from trapeze.live l where l.id = j.id limit 1)
	union all
	(select p.started_at from trapeze.parked p where p.id = j.id limit 1)
	union all
	(select d.started_at from trapeze.done d where d.id = j.id and d.finished_at >= j.created_at - interval '1 day' limit 1)
	limit 1
) s
where j.kind = @kind and j.unique_key = @unique_key and j.throttled_at is not null and s.started_at is not null
order by j.kind, j.unique_key, j.throttled_at desc limit 1`)
	markThrottledSQL = newStatement(`update trapeze.jobs set throttled_at = clock_timestamp() where id = @id`)
)

// sendBackLiveSQL and sendBackParkedSQL make a waiting job await approval for its new args, in its next epoch. The subject's guard becomes free.
// Plan: primary key lookups.
var (
	sendBackLiveSQL = newStatement(`
with gone as (
	delete from trapeze.live where id = @id and state = 'pending' and unique_while = 'pending' returning *
), parked as (
	insert into trapeze.parked (why, run_after, `, ParkedColumns, `)
	select 'approval', coalesce(due_at, ready_at), id, started_at, fence, event_no + 1, epoch + 1, attempt, crashes, priority, isolated, unique_while, lane,
		kind, subject, key, start_by from gone
), `, ReleaseGuards, `, event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select id, event_no + 1, fence, 'pending', 'awaiting_approval', 'job.replaced', @actor, json_build_object('epoch', epoch + 1) from gone
)
select id from gone`)
	sendBackParkedSQL = newStatement(`
with held as materialized (
	select p.id, p.why from trapeze.parked p where p.id = @id and p.unique_while = 'pending' for update
), back as (
	update trapeze.parked p set why = 'approval', event_no = p.event_no + 1, epoch = p.epoch + 1 from held h where p.id = h.id
	returning p.id, p.event_no, p.fence, p.epoch
), event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select b.id, b.event_no, b.fence, case h.why when 'approval' then 'awaiting_approval' else 'pending' end, 'awaiting_approval', 'job.replaced', @actor,
		json_build_object('epoch', b.epoch) from back b join held h on h.id = b.id
)
select id from back`)
)

// Replacement reports how a submission has changed the job that holds its unique key.
type Replacement struct {
	Ended    bool          // the job has ended since it was found: reserve the key again
	Replaced bool          // the job takes the new args; otherwise, it cannot be replaced any more
	Awaiting bool          // it awaits approval for them
	DueIn    time.Duration // if positive, the submission has moved the time at which the job is due
}

// TakeKey reserves the unique key of n in the caller's transaction, and returns the job that holds it: that of n, or another one. If another job
// holds it and n.Replace is set, that job takes the args of n. If n is throttled, TakeKey sets its delay, and the caller must call [MarkThrottled] after
// inserting it. TakeKey returns the errors of [Replace].
func TakeKey(ctx context.Context, s *Store, db DB, n *NewJob) (holder int64, r Replacement, err error) {
	for range 100 {
		holder, err = ReserveKey(ctx, s, db, n.Kind, *n.UniqueKey, n.ID)
		if err == nil && holder == n.ID && n.ThrottleMillis > 0 {
			var wait int64
			wait, err = throttled(ctx, s, db, n)
			n.DelayMillis = max(n.DelayMillis, wait)
		}
		if err != nil || holder == n.ID || !n.Replace {
			return holder, r, err
		}
		if r, err = Replace(ctx, s, db, holder, n); err != nil || !r.Ended {
			return holder, r, err
		}
	}
	return 0, r, fmt.Errorf("reserve the unique key %q: its jobs keep ending", *n.UniqueKey)
}

// throttled returns the delay of a new throttled job, in milliseconds.
func throttled(ctx context.Context, s *Store, db DB, n *NewJob) (millis int64, err error) {
	delay, err := askFor(ctx, s, db, pgx.RowTo[int64], throttleSQL, args{{"kind", n.Kind}, {"unique_key", *n.UniqueKey}, {"throttle", n.ThrottleMillis}})
	if err != nil {
		return 0, fmt.Errorf("read the last start of unique key %q: %w", *n.UniqueKey, err)
	}
	return append(delay, 0)[0], nil
}

// MarkThrottled records that a job was submitted with a throttled unique key, in the transaction that has inserted the job.
func MarkThrottled(ctx context.Context, s *Store, db DB, id int64) error {
	if _, err := do(ctx, s, db, markThrottledSQL, args{{"id", id}}); err != nil {
		return fmt.Errorf("mark job %d as throttled: %w", id, err)
	}
	return nil
}

// Replace replaces the args of holder, a job that holds the unique key of n, in the transaction that has locked the key. The job keeps its id, lane,
// priority and position. It returns [job.ErrKeyHeld] if the job belongs to another submitter, and [job.ErrInvalid] if it has another subject or
// key, or planned steps while n has none. If the job is sent back for approval, the caller must call [Store.AdmitNext] after the commit.
func Replace(ctx context.Context, s *Store, db DB, holder int64, n *NewJob) (r Replacement, err error) {
	type row struct {
		Exists, Waits, Submitter, Line, Steps, Asks bool
		DueIn                                       int64 // in milliseconds
	}
	by := args{{"holder", holder}, {"kind", n.Kind}, {"unique_key", *n.UniqueKey}, {"submitter", n.Submitter}, {"subject", n.Subject}, {"key", Some(n.Key)},
		{"args", string(n.Args)}, {"planned", text(n.Planned)}, {"traceparent", Some(n.Trace)}, {"pipeline", n.Pipeline}, {"needs_approval", n.approval()},
		{"debounce", n.DebounceMillis}, {"debounce_max", n.DebounceMaxMillis}}
	found, err := askFor(ctx, s, db, pgx.RowToStructByPos[row], replaceSQL, by)
	if err != nil {
		return r, fmt.Errorf("replace job %d: %w", holder, err)
	}
	switch f := found[0]; {
	case !f.Waits:
		r.Ended = !f.Exists
		return r, nil
	case !f.Submitter:
		return r, fmt.Errorf("replace the args of another submitter's job: %w", job.ErrKeyHeld)
	case !f.Line:
		return r, fmt.Errorf("%w: replace job %d: it has another subject or key; submit with the same ones", job.ErrInvalid, holder)
	case !f.Steps:
		return r, fmt.Errorf("%w: replace job %d: it has planned steps; submit them, too", job.ErrInvalid, holder)
	default:
		r.Replaced, r.Awaiting, r.DueIn = true, f.Asks, time.Duration(f.DueIn)*time.Millisecond
	}
	for try := 0; r.Awaiting; try++ { // the job can be promoted or admitted between the two statements, and then it is in the other table
		for _, sql := range []*statement{sendBackLiveSQL, sendBackParkedSQL} {
			back, err := askFor(ctx, s, db, pgx.RowTo[int64], sql, args{{"id", holder}, {"actor", n.actor()}})
			if err != nil {
				return r, fmt.Errorf("send job %d back for approval: %w", holder, err)
			}
			if len(back) > 0 {
				return r, nil
			}
		}
		if try == 3 {
			return Replacement{Ended: true}, nil
		}
	}
	return r, nil
}
