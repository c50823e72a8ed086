package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Emission is an event that a handler emits.
type Emission struct {
	Event, Message string
	Level          string          // defaults to info
	Fields         json.RawMessage `json:",omitempty"` // nil if there are none
	At             time.Time       // when the handler emitted the event, by this machine's clock; only the age is used
}

// emitSQL appends a handler's events to its job's history, numbered consecutively under the row lock. Each event's timestamp is computed
// from the event's age, so that the history shows when it happened, not when it was written. Plan: live_pkey, one row; a HOT update.
var emitSQL = newStatement(`
with held as (
	update trapeze.live set event_no = event_no + cardinality(@events::text[]) where id = @id and fence = @fence and pod = @pod
	returning id, fence, pod, event_no - cardinality(@events::text[]) as before
), told as (
	insert into trapeze.job_events (job, event_no, at, fence, pod, from_state, to_state, event, actor, level, message, fields)
	select h.id, h.before + e.n, clock_timestamp() - e.age * interval '1 microsecond', h.fence, h.pod, 'running', 'running',
		e.event, 'handler', e.level, e.message, e.fields::json
	from held h cross join unnest(@events::text[], @levels::text[], @messages::text[], @fields::text[], @ages::bigint[])
		with ordinality as e(event, level, message, fields, age, n)
)
select before from held`)

// Emit appends either all of the events or none of them to the history of a claim. It returns [job.ErrLeaseLost] if a newer claim exists,
// and [job.ErrGone] if the job was deleted.
func (s *Store) Emit(ctx context.Context, l job.Lease, list ...Emission) error {
	found, err := run(ctx, s, pgx.RowTo[int], emitSQL, emitArgs(l, list))
	if err = emitted(l, found, err); errors.Is(err, job.ErrLeaseLost) {
		return s.Lost(ctx, l)
	}
	return err
}

// EmitIn is like [Store.Emit] but runs in the caller's transaction.
func (s *Store) EmitIn(ctx context.Context, db DB, l job.Lease, list ...Emission) error {
	found, err := askFor(ctx, s, db, pgx.RowTo[int], emitSQL, emitArgs(l, list))
	return emitted(l, found, err)
}

func emitArgs(l job.Lease, list []Emission) args {
	var (
		events   = make([]string, len(list))
		messages = make([]string, len(list))
		levels   = make([]*string, len(list))
		fields   = make([]*string, len(list))
		ages     = make([]int64, len(list))
	)
	for i, e := range list {
		events[i], levels[i], messages[i], fields[i] = e.Event, Some(e.Level), e.Message, text(e.Fields)
		ages[i] = age(e.At)
	}
	return args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"events", events}, {"levels", levels}, {"messages", messages},
		{"fields", fields}, {"ages", ages}}
}

func emitted(l job.Lease, found []int, err error) error {
	if err == nil && len(found) == 0 {
		err = job.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("emit events of job %d: %w", l.JobID, err)
	}
	return nil
}

// emitManySQL appends one event to the history of each of many claims, as [emitSQL] does for a single claim. It skips locked rows and
// claims that are no longer their jobs' latest. Plan: live_pkey, one row per claim; a HOT update.
var emitManySQL = newStatement(`
with held as materialized (
	select e.* from unnest(@ids::bigint[], @fences::bigint[], @pods::uuid[], @events::text[], @levels::text[], @messages::text[], @fields::text[], @ages::bigint[])
		as e(id, fence, pod, event, level, message, fields, age)
	join trapeze.live l on l.id = any(array[e.id])
	where l.fence = e.fence and l.pod = e.pod
	order by e.id for update of l skip locked
), numbered as (
	update trapeze.live l set event_no = l.event_no + 1 from held h
	where l.id = any(array[h.id])
	returning l.id, l.fence, l.pod, l.event_no, h.event, h.level, h.message, h.fields, h.age
), told as (
	insert into trapeze.job_events (job, event_no, at, fence, pod, from_state, to_state, event, actor, level, message, fields)
	select id, event_no, clock_timestamp() - age * interval '1 microsecond', fence, pod, 'running', 'running', event, 'handler', level,
		message, fields::json
	from numbered
)
select id, fence from numbered`)

// ClaimEmission is an event to append to a claim's history.
type ClaimEmission struct {
	Lease job.Lease
	Emission
}

// EmitMany appends one event to the history of each claim, all in one commit. It returns the claims whose event was written. The other
// claims are no longer their jobs' latest, or their rows are locked; call [Store.Emit] to find out which.
func (s *Store) EmitMany(ctx context.Context, list []ClaimEmission) (written map[job.Lease]bool, err error) {
	var (
		ids, fences, ages      []int64
		pods, events, messages []string
		levels, fields         []*string
	)
	of := map[[2]int64]job.Lease{}
	for _, e := range list {
		ids, fences, pods = append(ids, e.Lease.JobID), append(fences, e.Lease.Fence), append(pods, e.Lease.Pod)
		events, messages = append(events, e.Event), append(messages, e.Message)
		levels, fields = append(levels, Some(e.Level)), append(fields, text(json.RawMessage(e.Fields)))
		ages = append(ages, age(e.At))
		of[[2]int64{e.Lease.JobID, e.Lease.Fence}] = e.Lease
	}
	type claim struct{ ID, Fence int64 }
	found, err := run(ctx, s, pgx.RowToStructByPos[claim], emitManySQL, args{{"ids", ids}, {"fences", fences}, {"pods", pods}, {"events", events}, {"levels", levels}, {"messages", messages}, {"fields", fields}, {"ages", ages}})
	if err != nil {
		return nil, fmt.Errorf("emit events of %d jobs: %w", len(list), err)
	}
	written = make(map[job.Lease]bool, len(found))
	for _, f := range found {
		written[of[[2]int64{f.ID, f.Fence}]] = true
	}
	return written, nil
}

// age returns the time that has passed since at, in microseconds, or 0 if at is the zero time or in the future, as after a jump of the clock
// of the machine that ran the handler.
func age(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return max(0, time.Since(at).Microseconds())
}

// EndJSON returns an SQL expression for the [job.End] of a deleted row g. The state, reason, failure and class are also SQL expressions.
// Plan: jobs_pkey, one row.
func EndJSON(state, reason, failure, class string) string {
	return `json_build_object('id', g.id::text, 'pipeline_id', (select j.pipeline_id::text from trapeze.jobs j where j.id = g.id), 'kind', g.kind,
		'lane', g.lane, 'subject', g.subject, 'key', coalesce(g.key, ''), 'attempt', g.attempt, 'state', ` + state + `, 'reason', ` + reason + `, 'error', ` + failure + `,
		'error_class', ` + class + `)`
}
