package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// checkpointSQL stores a checkpoint, and forgiveSQL resets the job's crash count because the job has made progress. Both run in a
// transaction that has locked the claim. Plan: primary key lookups.
var (
	checkpointSQL = newStatement(`
insert into trapeze.job_progress (id, checkpoint) values (@id, @checkpoint::text::json)
on conflict (id) do update set checkpoint = excluded.checkpoint, updated_at = now()`)
	forgiveSQL = newStatement(`update trapeze.live set crashes = 0, isolated = false where id = @id and crashes > 0`)
)

// Checkpoint stores a checkpoint for the locked claim and commits the transaction, in one round trip.
func (h *Holding) Checkpoint(ctx context.Context, s *Store, id int64, checkpoint json.RawMessage) error {
	batch := h.last()
	for _, one := range []struct {
		*statement
		args
	}{{checkpointSQL, args{{"id", id}, {"checkpoint", string(checkpoint)}}}, {forgiveSQL, args{{"id", id}}}} {
		values, err := one.bind(one.args)
		if err != nil {
			return err
		}
		batch.Queue(s.In(one.text), values...)
	}
	batch.Queue("commit")
	if err := h.conn.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("store checkpoint of job %d: %w", id, err)
	}
	return nil
}

// keepSQL combines checkpointSQL and forgiveSQL for a handler that writes nothing else. It locks the claim itself, and stores nothing if a
// cancel request was committed first. It is idempotent. Plan: primary key lookups; a HOT update, only after a crash.
var keepSQL = newStatement(`
with held as materialized (
	select id, crashes, cancel_requested from trapeze.live where id = @id and fence = @fence and pod = @pod for no key update
), kept as (
	insert into trapeze.job_progress (id, checkpoint) select id, @checkpoint::text::json from held where not cancel_requested
	on conflict (id) do update set checkpoint = excluded.checkpoint, updated_at = now()
), forgiven as (
	update trapeze.live l set crashes = 0, isolated = false
	from held h where l.id = any(array[h.id]) and h.crashes > 0 and not h.cancel_requested
)
select cancel_requested from held`)

// Keep stores a checkpoint for a claim. It returns [job.ErrLeaseLost] if a newer claim exists, [job.ErrGone] if the job was deleted, and
// [job.ErrCancelled] if a cancel request was committed first.
func (s *Store) Keep(ctx context.Context, l job.Lease, checkpoint json.RawMessage) error {
	found, err := run(ctx, s, pgx.RowTo[bool], keepSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"checkpoint", string(checkpoint)}})
	switch {
	case err != nil:
	case len(found) == 0:
		err = s.Lost(ctx, l)
	case found[0]:
		err = job.ErrCancelled
	}
	if err != nil {
		return fmt.Errorf("store checkpoint of job %d: %w", l.JobID, err)
	}
	return nil
}
