package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// finishAlone finishes a run in a separate transaction, which contains the fence check, the handler's writes, the outcome and the next
// step. If the connection breaks before the commit, the writes run again in a new transaction. If finishAlone returns an error, the run is
// not finished.
func (x *executor) finishAlone(w *flush) (*Run, error) {
	run, next := w.run, w.next
	if next != nil {
		defer func() { x.InFlight.Remove(next.ID) }()
	}
	write := func() error {
		return x.leases.run(run.Ctx, run, x.Pool, func(ctx context.Context, tx pgx.Tx) error {
			return x.callWrite(ctx, run, tx, w.writes)
		}, end{
			before: func(context.Context, pgx.Tx) error { return failpoint.Hit(failpoint.InTxCommit) },
			finish: func(ctx context.Context, tx *store.Holding) (err error) {
				w.ended, err = tx.Finish(ctx, x.Store, run.Lease.Pod, w.ending)
				return err
			},
			committed: x.leases.endCommitted(w),
		})
	}
	err := write()
	if next != nil {
		err = x.withFreeIDs(run, err, []*store.NewJob{next}, write)
	}
	if err == nil {
		return x.finished(run, next, w.ending, w.ended, nil), nil
	}
	x.undoStart(run, next)
	return x.concludeHeld(run, err)
}

// finishGrouped continues after the group commit of a completion with queued statements. It returns the run of the next step if that step
// has started in this process. If it returns an error, the run is not finished.
func (x *executor) finishGrouped(w *flush) (*Run, error) {
	if errors.Is(w.err, errAlone) {
		next, err := x.finishAlone(w)
		if _, refused := errors.AsType[*heldError](err); refused {
			x.groups.refused(w.run.Claimed.Kind)
		}
		return next, err
	}
	if w.next != nil {
		defer x.InFlight.Remove(w.next.ID)
	}
	if w.err == nil || errors.Is(w.err, errStopped) {
		return x.finished(w.run, w.next, w.ending, w.ended, w.err), nil
	}
	x.undoStart(w.run, w.next)
	return x.concludeHeld(w.run, w.err)
}

// callWrite runs the handler's writes and turns a panic into an error. Each error is a [writeError]. It uses a separate goroutine, because a
// runtime.Goexit in the handler's code, for example from a failing test, must not end the current one, which still has to finish the job.
func (x *executor) callWrite(ctx context.Context, run *Run, tx pgx.Tx, writes work.Writes) error {
	err := routine.Call(func() error {
		err := x.Holders.Inside(run, func() error { return writes.Run(ctx, tx) })
		if err != nil {
			err = work.ReadError(err)
		}
		return err
	})
	if p, ok := err.(*routine.Panic); ok {
		err = fmt.Errorf("in InTx or Write: %w", p)
	}
	if err != nil {
		err = &writeError{err}
	}
	return err
}

// concludeHeld finishes a run whose last transaction was not committed, or returns an error with which the caller must finish it.
func (x *executor) concludeHeld(run *Run, err error) (*Run, error) {
	if errors.Is(err, job.ErrLeaseLost) && run.IsLost() {
		return x.finished(run, nil, store.Ending{}, store.Ended{}, err), nil
	}
	if w, ok := errors.AsType[*writeError](err); ok {
		return nil, &heldError{w.err}
	}
	if errors.Is(err, job.ErrCancelled) {
		// Either a cancel was committed first or the handler was cancelled. Record the cancellation, without the handler's writes or a next
		// step.
		x.finish(run, store.Ending{State: job.Cancelled, Outcome: job.Error, Reason: job.ReasonCancelled})
		return nil, nil
	}
	if errors.Is(err, job.ErrLeaseLost) && !errors.Is(context.Cause(run.Ctx), job.ErrLeaseLost) {
		return x.finished(run, nil, store.Ending{}, store.Ended{}, err), nil // the fence rejected the write
	}
	// If the handler's context has ended, the pod may no longer trust its lease, although it may still own the claim. The caller therefore
	// hands the claim back. If another pod owns it by now, the fence rejects the hand-back.
	return nil, &heldError{fmt.Errorf("end with the handler's writes: %w", err)}
}

// heldError wraps the error from a transaction that locked the lease. The cause of the handler's context must be reread, because the
// context may have ended after the handler returned.
type heldError struct{ err error }

func (h *heldError) Error() string { return h.err.Error() }

func (h *heldError) Unwrap() error { return h.err }
