package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// goneSQL returns the job if it has been deleted. It runs only after a write was rejected. Plan: probes of the primary keys and of the id index of done.
var goneSQL = newStatement("select w.id from (select @id::bigint as id) w where ", deleted)

// deleted is the condition that w.id has no row in jobs, or no row in any of live, parked and done.
const deleted = `((select true from trapeze.jobs j where j.id = w.id limit 1) is null
	or coalesce((select true from trapeze.live l where l.id = w.id limit 1), (select true from trapeze.parked p where p.id = w.id limit 1),
		(select true from trapeze.done d where d.id = w.id limit 1)) is null)`

// Lost returns the reason why a claim's write was rejected: [job.ErrGone] if the job has been deleted, and [job.ErrLeaseLost] otherwise. If
// the reason cannot be determined, it returns [job.ErrLeaseLost].
func (s *Store) Lost(ctx context.Context, l job.Lease) error { return lostIn(ctx, s, nil, l) }

// lostIn is like [Store.Lost] but runs in the caller's transaction, unless db is nil.
func lostIn(ctx context.Context, s *Store, db DB, l job.Lease) error {
	if gone, err := QueryOrRows(ctx, s, db, pgx.RowTo[int64], goneSQL.text, l.JobID); err == nil && len(gone) > 0 {
		return job.ErrGone
	}
	return job.ErrLeaseLost
}
