package engine

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// finishInTx ends a claim in a transaction of the host's pool, with the handler's own writes in it: fence, writes, end
// and next step are one commit. The writes run again when the connection broke before the commit; only one commit counts.
// After an error the claim has not ended.
func (fin *finisher) finishInTx(one *Run, o *work.Outcome) (*Run, error) {
	e, next, err := fin.succeeded(one, o)
	if err != nil {
		return nil, err
	}
	e = fin.flushOf(one, e, next).ending
	if next != nil {
		defer func() { fin.inFlight.remove(next.ID) }()
	}
	var ended store.Ended
	write := func() error {
		return fin.leases.run(one.Ctx, one, fin.Pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := callWrite(ctx, one, tx, o.InTx); err != nil {
				return &writeError{err}
			}
			if err := one.Events.WriteIn(ctx, tx); err != nil {
				return err
			}
			var err error
			if ended, err = fin.Store.FinishIn(ctx, tx, one.Lease.Pod, e); err != nil {
				return err
			}
			return failpoint.Hit(failpoint.InTxCommit)
		}, func(ctx context.Context) (bool, error) {
			// No other statement ends this claim as succeeded; a cancel is as good, from any writer.
			child := int64(0)
			if next != nil {
				child = next.ID
			}
			found, err := fin.Store.ClaimOutcomes(ctx, one.Lease.Pod, []job.Lease{one.Lease}, []int64{child}, false)
			c := found[one.Lease.JobID]
			ended.ChildRunning = c.NextRunning
			return c.State != nil && *c.State == ended.State, err
		})
	}
	err = write()
	for try := 0; next != nil && fin.Store.IDTaken(err) && try < idTries; try++ {
		if err = fin.renumberNext(one, next); err == nil {
			err = write()
		}
	}
	if err == nil {
		return fin.finished(one, next, e, ended, nil), nil
	}
	fin.undoStart(one, next)
	return fin.concludeHeld(one, err)
}

// writeError is an error of the handler's own writes.
type writeError struct{ err error }

func (w *writeError) Error() string { return w.err.Error() }

func (w *writeError) Unwrap() error { return w.err }

// callWrite calls the handler's writes; a panic is their error. They have a goroutine of their own, because what ends
// theirs (runtime.Goexit, as of a test that fails) must not end ours, which owes the job its end.
func callWrite(ctx context.Context, one *Run, tx pgx.Tx, writes work.Writes) error {
	err := guard.Call(func() error {
		err := one.inside(func() error { return writes.Run(ctx, tx) })
		if err != nil {
			work.ReadError(err)
		}
		return err
	})
	if p, ok := err.(*guard.Panic); ok {
		return fmt.Errorf("in InTx: %w", p)
	}
	return err
}
