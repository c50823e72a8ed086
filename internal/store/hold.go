package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// holdSQL checks a lease and holds it until the caller's transaction ends: whoever wants to take the job away waits or
// passes it by. So that a frozen process cannot hold it for ever, the server ends the transaction when it has been idle
// for a lease. The count of such transactions answers, after a lost reply to COMMIT, what came of it.
// Plan: Index Scan on live_pkey, one row; HOT.
var holdSQL = newStatement(`
update trapeze.live set writes = writes + 1 where id = @id and fence = @fence and pod = @boot
returning cancel_requested, writes, set_config('idle_in_transaction_session_timeout', @idle::bigint::text, true)`)

// Hold checks a lease in the caller's transaction, keeps it until that ends, and returns the transaction's number among
// those that held the job. It returns [job.ErrLeaseLost], [job.ErrGone], or [job.ErrCancelled] when a cancel was committed before.
func Hold(ctx context.Context, s *Store, db DB, l job.Lease, idle time.Duration) (number int, err error) {
	type hold struct {
		Cancelled bool
		Number    int
		Idle      string
	}
	found, err := askFor(ctx, s, db, pgx.RowToStructByPos[hold], holdSQL,
		args{{"id", l.JobID}, {"fence", l.Fence}, {"boot", l.Pod}, {"idle", idle.Milliseconds()}})
	switch {
	case err != nil:
		return 0, fmt.Errorf("hold job %d: %w", l.JobID, err)
	case len(found) == 0:
		return 0, fmt.Errorf("hold job %d: %w", l.JobID, lostIn(ctx, s, db, l))
	case found[0].Cancelled:
		return 0, fmt.Errorf("hold job %d: %w", l.JobID, job.ErrCancelled)
	}
	return found[0].Number, nil
}

// settledSQL reads how many transactions have held a claim. It locks the row, so that it waits for the one in doubt,
// should that still be at work. The id of a transaction would not do: after a crash PostgreSQL gives the ids of those
// whose log was lost to others. Plan: Index Scan on live_pkey, one row.
var settledSQL = newStatement(`select writes from trapeze.live where id = @id and fence = @fence and pod = @boot for no key update`)

// Settled returns how many transactions that held a claim were committed, once none is under way; held is false when the
// claim is not the job's latest any more, or has ended.
func Settled(ctx context.Context, s *Store, l job.Lease) (writes int, held bool, err error) {
	found, err := run(ctx, s, pgx.RowTo[int], settledSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"boot", l.Pod}})
	if err != nil {
		return 0, false, fmt.Errorf("settle a commit of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return 0, false, nil
	}
	return found[0], true, nil
}
