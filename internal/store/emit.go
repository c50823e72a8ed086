package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Emission is an event of a handler's.
type Emission struct {
	Event, Message string
	Level          string          // empty: info
	Fields         json.RawMessage // nil: none
	At             time.Time       // when the handler emitted it, on this machine's clock: what counts is how long ago
}

// emitSQL appends a handler's events to its job's history, numbered one after the other under the row's lock. Each is as
// old as the handler says, so that the history tells when it happened, not when it was written.
// Plan: live_pkey, one row, HOT.
var emitSQL = newStatement(`
with held as (
	update trapeze.live set event_no = event_no + cardinality(@events::text[]) where id = @id and fence = @fence and pod = @boot
	returning id, fence, pod, event_no - cardinality(@events::text[]) as before
), told as (
	insert into trapeze.job_events (job, event_no, at, fence, boot, from_state, to_state, event, actor, level, message, fields)
	select h.id, h.before + e.n, clock_timestamp() - e.age * interval '1 microsecond', h.fence, h.pod, 'running', 'running',
		e.event, 'handler', e.level, e.message, e.fields::json
	from held h cross join unnest(@events::text[], @levels::text[], @messages::text[], @fields::text[], @ages::bigint[])
		with ordinality as e(event, level, message, fields, age, n)
)
select before from held`)

// Emit appends events to the history of a claim, all or none: [job.ErrLeaseLost] when it is no longer the latest,
// [job.ErrGone] when the job was deleted.
func (s *Store) Emit(ctx context.Context, l job.Lease, list ...Emission) error {
	found, err := run(ctx, s, pgx.RowTo[int], emitSQL, emitArgs(l, list))
	return orGone(ctx, s, l, emitted(l, found, err))
}

// EmitIn is [Store.Emit] in the caller's transaction.
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
	return args{{"id", l.JobID}, {"fence", l.Fence}, {"boot", l.Pod}, {"events", events}, {"levels", levels}, {"messages", messages},
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
