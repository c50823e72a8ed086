package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// emitManySQL appends one event each to the histories of many claims, as [emitSQL] does to one. Rows that somebody holds, and
// claims that are no longer the latest, are passed by. Plan: live_pkey, a row a claim, HOT.
var emitManySQL = newStatement(`
with held as materialized (
	select e.* from unnest(@ids::bigint[], @fences::bigint[], @pods::uuid[], @events::text[], @levels::text[], @messages::text[], @fields::text[], @ages::bigint[])
		as e(id, fence, pod, event, level, message, fields, age)
	join trapeze.live l on l.id = e.id
	where l.fence = e.fence and l.pod = e.pod
	order by l.id for update of l skip locked
), numbered as (
	update trapeze.live l set event_no = l.event_no + 1 from held h
	where l.id = h.id
	returning l.id, l.fence, l.pod, l.event_no, h.event, h.level, h.message, h.fields, h.age
), told as (
	insert into trapeze.job_events (job, event_no, at, fence, boot, from_state, to_state, event, actor, level, message, fields)
	select id, event_no, clock_timestamp() - age * interval '1 microsecond', fence, pod, 'running', 'running', event, 'handler', level,
		message, fields::json
	from numbered
)
select id, fence from numbered`)

// Emitted is an event of a claim.
type Emitted struct {
	Lease job.Lease
	Emission
}

// EmitMany appends one event each to the histories of claims, all in one commit. It reports of which claims: the others are no
// longer the latest, or their rows are held by somebody, as [Store.Emit] will tell.
func (s *Store) EmitMany(ctx context.Context, list []Emitted) (written map[job.Lease]bool, err error) {
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

// age is how many microseconds ago a moment was; 0 for none.
func age(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return time.Since(at).Microseconds()
}
