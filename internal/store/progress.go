package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// progressSQL records a claim's progress, and prevents the lease from being taken over during the write. A null done, total or message
// leaves the stored value unchanged. Plan: primary key lookups.
var progressSQL = newStatement(`
with held as materialized (
	select id from trapeze.live where id = @id and fence = @fence and pod = @pod for key share
)
insert into trapeze.job_progress (id, done, total, message)
select id, @done, @total, @message from held
on conflict (id) do update set done = coalesce(excluded.done, job_progress.done),
	total = coalesce(excluded.total, job_progress.total), message = coalesce(excluded.message, job_progress.message),
	updated_at = now()
returning id`)

// Progress records a claim's progress. It returns [job.ErrLeaseLost] if a newer claim exists, and [job.ErrGone] if the job was deleted.
func (s *Store) Progress(ctx context.Context, l job.Lease, p job.Progress) error {
	found, err := run(ctx, s, pgx.RowTo[int64], progressSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"done", p.Done}, {"total", p.Total}, {"message", p.Message}})
	if err != nil {
		return fmt.Errorf("record progress of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("record progress of job %d: %w", l.JobID, s.Lost(ctx, l))
	}
	return nil
}

// staleResultSQL records that the result of a lost claim was discarded. It takes the event number from the job's row in live. It has no
// effect on a finished job, because nothing is added to the history of a finished job.
var staleResultSQL = newStatement(`
with held as (
	update trapeze.live set event_no = event_no + 1 where id = @id and fence > @fence returning id, state, event_no
)
insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event, level, message)
select id, event_no, @fence, @pod, state, state, 'job.stale_result', 'warn', @message from held`)

// StaleResult records in the job's history that an outdated claim's result was rejected.
func (s *Store) StaleResult(ctx context.Context, l job.Lease, what string) error {
	_, err := run(ctx, s, pgx.RowTo[int], staleResultSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"message", what}})
	return err
}

// resultSQL reads a finished job's result. Plan: the id index of done.
var resultSQL = newStatement(`select d.result from trapeze.done d where d.id = @id order by d.epoch desc limit 1`)

// Result returns a finished job's result, or nil if there is none. It returns [job.ErrNotFound] if the job is not in done.
func (s *Store) Result(ctx context.Context, id int64) (json.RawMessage, error) {
	found, err := run(ctx, s, pgx.RowTo[[]byte], resultSQL, args{{"id", id}})
	if err != nil {
		return nil, fmt.Errorf("read result of job %d: %w", id, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("read result of job %d: %w", id, job.ErrNotFound)
	}
	return found[0], nil
}
