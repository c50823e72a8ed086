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

// trapeze.enqueue runs the same two functions of the schema. markThrottledSQL marks a new throttled job: the key is locked, so that throttled_at has the
// order in which its jobs took it. Plan: a function; jobs_pkey.
var (
	replaceSQL = newStatement(`
select r.ended, r.replaced, r.awaiting, coalesce(r.refused, ''), coalesce(ceil(extract(epoch from r.due_in) * 1000), 0)::bigint
from trapeze.replace_job(@holder, @kind, @unique_key, @submitter, @subject, @key, @args::text::json, @planned::text::json, @traceparent, @pipeline,
	@needs_approval, nullif(@debounce::bigint, 0) * interval '1 millisecond', @debounce_max::bigint * interval '1 millisecond', @actor) r`)
	throttleSQL = newStatement(`
select coalesce(ceil(extract(epoch from trapeze.throttle_delay(@kind, @unique_key, @throttle::bigint * interval '1 millisecond')) * 1000), 0)::bigint`)
	markThrottledSQL = newStatement(`update trapeze.jobs set throttled_at = clock_timestamp() where id = @id`)
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
	return delay[0], nil
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
		Ended, Replaced, Awaiting bool
		Differs                   string
		DueIn                     int64 // in milliseconds
	}
	by := args{{"holder", holder}, {"kind", n.Kind}, {"unique_key", *n.UniqueKey}, {"submitter", n.Submitter}, {"subject", n.Subject}, {"key", Some(n.Key)},
		{"args", string(n.Args)}, {"planned", text(n.Planned)}, {"traceparent", Some(n.Trace)}, {"pipeline", n.Pipeline}, {"needs_approval", n.approval()},
		{"debounce", n.DebounceMillis}, {"debounce_max", n.DebounceMaxMillis}, {"actor", n.actor()}}
	found, err := askFor(ctx, s, db, pgx.RowToStructByPos[row], replaceSQL, by)
	if err != nil {
		return r, fmt.Errorf("replace job %d: %w", holder, err)
	}
	switch f := found[0]; f.Differs {
	case "":
		return Replacement{f.Ended, f.Replaced, f.Awaiting, time.Duration(f.DueIn) * time.Millisecond}, nil
	case "submitter":
		return r, fmt.Errorf("replace the args of another submitter's job: %w", job.ErrKeyHeld)
	default:
		return r, fmt.Errorf("%w: replace job %d: it has other %s; submit with the same", job.ErrInvalid, holder, f.Differs)
	}
}
