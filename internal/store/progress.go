package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// progressSQL notes how far a claim is. The lease is held against a takeover while the note is written; done, total and
// message keep their value when null. Plan: primary keys.
const progressSQL = `
with held as materialized (
	select id from trapeze.live where id = $1 and fence = $2 and pod = $3 for key share
)
insert into trapeze.job_progress (id, done, total, message)
select id, $4, $5, $6 from held
on conflict (id) do update set done = coalesce(excluded.done, job_progress.done),
	total = coalesce(excluded.total, job_progress.total), message = coalesce(excluded.message, job_progress.message),
	updated_at = now()
returning id`

// Progress notes how far a claim is: [job.ErrLeaseLost] when it is no longer the latest, [job.ErrGone] when the job was deleted.
func (s *Store) Progress(ctx context.Context, l job.Lease, p job.Progress) error {
	found, err := rows(ctx, s, pgx.RowTo[int64], progressSQL, l.JobID, l.Fence, l.Pod, p.Done, p.Total, p.Message)
	if err != nil {
		return fmt.Errorf("note progress of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("note progress of job %d: %w", l.JobID, s.Lost(ctx, l))
	}
	return nil
}

// staleResultSQL notes that the result of a lost claim was discarded. The job's row, wherever it is, gives the number; a
// terminal job's history is closed, so only a live one is noted.
const staleResultSQL = `
with held as (
	update trapeze.live set event_no = event_no + 1 where id = $1 and fence > $2 returning id, state, event_no
)
insert into trapeze.job_events (job, event_no, fence, boot, from_state, to_state, event, level, message)
select id, event_no, $2, $3, state, state, 'job.stale_result', 'warn', $4 from held`

// StaleResult notes in the history that a former owner's result was refused.
func (s *Store) StaleResult(ctx context.Context, l job.Lease, what string) error {
	_, err := rows(ctx, s, pgx.RowTo[int], staleResultSQL, l.JobID, l.Fence, l.Pod, what)
	return err
}

// parentSQL reads the result of a job's parent. Plan: done_by_id.
const parentSQL = `select d.result from trapeze.done d where d.id = $1 order by d.epoch desc limit 1`

// Result returns the result of a job that has ended: nil when it has none, [job.ErrNotFound] when it is not in done.
func (s *Store) Result(ctx context.Context, id int64) (json.RawMessage, error) {
	found, err := rows(ctx, s, pgx.RowTo[[]byte], parentSQL, id)
	if err != nil {
		return nil, fmt.Errorf("read result of job %d: %w", id, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("read result of job %d: %w", id, job.ErrNotFound)
	}
	return found[0], nil
}
