package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// goneSQL returns the jobs that have been deleted: those without a row in jobs, and those without a row in any of live, parked and done. It
// runs only after a write was rejected. Plan: probes of the primary keys and of the id index of done.
var goneSQL = newStatement("select w.id from unnest(@ids::bigint[]) as w(id) where ", deleted)

// deleted is the condition that w.id has no row in jobs, or no row in any of live, parked and done.
const deleted = `((select true from trapeze.jobs j where j.id = w.id limit 1) is null
	or coalesce((select true from trapeze.live l where l.id = w.id limit 1), (select true from trapeze.parked p where p.id = w.id limit 1),
		(select true from trapeze.done d where d.id = w.id limit 1)) is null)`

// Gone reports which of the given jobs have been deleted.
func (s *Store) Gone(ctx context.Context, ids ...int64) (map[int64]bool, error) {
	found, err := run(ctx, s, pgx.RowTo[int64], goneSQL, args{{"ids", ids}})
	if err != nil {
		return nil, fmt.Errorf("find deleted jobs: %w", err)
	}
	gone := make(map[int64]bool, len(found))
	for _, id := range found {
		gone[id] = true
	}
	return gone, nil
}

// Lost returns the reason why a claim's write was rejected: [job.ErrGone] if the job has been deleted, and [job.ErrLeaseLost] otherwise. If
// the reason cannot be determined, it returns [job.ErrLeaseLost].
func (s *Store) Lost(ctx context.Context, l job.Lease) error {
	if gone, err := s.Gone(ctx, l.JobID); err == nil && gone[l.JobID] {
		return job.ErrGone
	}
	return job.ErrLeaseLost
}

// lostIn is like [Store.Lost] but runs in the caller's transaction.
func lostIn(ctx context.Context, s *Store, db DB, l job.Lease) error {
	if gone, err := askFor(ctx, s, db, pgx.RowTo[int64], goneSQL, args{{"ids", []int64{l.JobID}}}); err == nil && len(gone) > 0 {
		return job.ErrGone
	}
	return job.ErrLeaseLost
}

// orGone replaces [job.ErrLeaseLost] with the result of [Store.Lost], and returns any other error unchanged.
func orGone(ctx context.Context, s *Store, l job.Lease, err error) error {
	if errors.Is(err, job.ErrLeaseLost) {
		return s.Lost(ctx, l)
	}
	return err
}
