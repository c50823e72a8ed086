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

// finishInTx finishes a run in a transaction on the host's pool that includes the handler's writes. See [finisher.finishAlone].
func (fin *finisher) finishInTx(run *Run, o *work.Outcome) (*Run, error) {
	e, next, err := fin.succeeded(run, o)
	if err != nil {
		return nil, err
	}
	w := fin.flushOf(run, e, next)
	w.writes = o.Writes
	return fin.finishAlone(w)
}

// finishAlone finishes a run in a separate transaction, which contains the fence check, the handler's writes, the outcome and the next
// step. If the connection breaks before the commit, the writes run again in a new transaction. If finishAlone returns an error, the run is
// not finished.
func (fin *finisher) finishAlone(w *flush) (*Run, error) {
	run, next := w.run, w.next
	if next != nil {
		defer func() { fin.inFlight.remove(next.ID) }()
	}
	write := func() error {
		return fin.leases.run(run.Ctx, run, fin.Pool, func(ctx context.Context, tx pgx.Tx) error {
			return fin.callWrite(ctx, run, tx, w.writes)
		}, end{
			before: func(context.Context, pgx.Tx) error { return failpoint.Hit(failpoint.InTxCommit) },
			finish: func(ctx context.Context, tx *store.Holding) (err error) {
				w.ended, err = tx.Finish(ctx, fin.Store, run.Lease.Pod, w.ending)
				return err
			},
			committed: fin.endCommitted(w),
		})
	}
	err := write()
	for try := 0; next != nil && fin.Store.IDTaken(err) && try < idTries; try++ {
		if err = fin.renumberNext(run, next); err == nil {
			err = write()
		}
	}
	if err == nil {
		return fin.finished(run, next, w.ending, w.ended, nil), nil
	}
	fin.undoStart(run, next)
	return fin.concludeHeld(run, err)
}

// endCommitted returns a function that reads back whether a completion's transaction was committed. If the job has succeeded, the
// transaction was committed, because no other one can finish the job as succeeded.
func (fin *finisher) endCommitted(w *flush) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		child := int64(0)
		if w.next != nil {
			child = w.next.ID
		}
		found, err := fin.Store.ClaimOutcomes(ctx, w.run.Lease.Pod, []job.Lease{w.run.Lease}, []int64{child}, false)
		c := found[w.run.Lease.JobID]
		w.ended = store.Ended{State: job.Succeeded, ChildRunning: c.NextRunning}
		return c.State != nil && *c.State == job.Succeeded, err
	}
}

// finishGrouped continues after the group commit of a completion with queued statements. It returns the run of the next step if that step
// has started in this process. If it returns an error, the run is not finished.
func (fin *finisher) finishGrouped(w *flush) (*Run, error) {
	if errors.Is(w.err, errAlone) {
		next, err := fin.finishAlone(w)
		if _, refused := errors.AsType[*heldError](err); refused {
			fin.groups.refused(w.run.Claimed.Kind)
		}
		return next, err
	}
	if w.next != nil {
		defer fin.inFlight.remove(w.next.ID)
	}
	if w.err == nil || errors.Is(w.err, errStopped) {
		return fin.finished(w.run, w.next, w.ending, w.ended, w.err), nil
	}
	fin.undoStart(w.run, w.next)
	return fin.concludeHeld(w.run, w.err)
}

// writeError wraps an error that the handler's writes returned.
type writeError struct{ err error }

func (w *writeError) Error() string { return w.err.Error() }

func (w *writeError) Unwrap() error { return w.err }

// callWrite runs the handler's writes and turns a panic into an error. Each error is a [writeError]. It uses a separate goroutine, because a
// runtime.Goexit in the handler's code, for example from a failing test, must not end the current one, which still has to finish the job.
func (fin *finisher) callWrite(ctx context.Context, run *Run, tx pgx.Tx, writes work.Writes) error {
	err := routine.Call(func() error {
		err := fin.leases.holders.inside(run, func() error { return writes.Run(ctx, tx) })
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
func (fin *finisher) concludeHeld(run *Run, err error) (*Run, error) {
	if errors.Is(err, job.ErrLeaseLost) && run.IsLost() {
		return fin.finished(run, nil, store.Ending{}, store.Ended{}, err), nil
	}
	if w, ok := errors.AsType[*writeError](err); ok {
		return nil, &heldError{w.err}
	}
	if errors.Is(err, job.ErrCancelled) {
		// Either a cancel was committed first or the handler was cancelled. Record the cancellation, without the handler's writes or a next
		// step.
		fin.finish(run, store.Ending{State: job.Cancelled, Outcome: job.Error, Reason: job.ReasonCancelled})
		return nil, nil
	}
	if errors.Is(err, job.ErrLeaseLost) && !errors.Is(context.Cause(run.Ctx), job.ErrLeaseLost) {
		return fin.finished(run, nil, store.Ending{}, store.Ended{}, err), nil // the fence rejected the write
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
