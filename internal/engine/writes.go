package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// writer implements [work.Writer] for a run. Each write counts as a sign of life.
type writer struct {
	run    *Run
	leases *claimTx
}

// Tx implements [work.Writer].
func (w *writer) Tx(ctx context.Context, write work.TxFunc, encode func() (json.RawMessage, error)) error {
	return w.tx(ctx, func(_ context.Context, tx pgx.Tx) error {
		err := w.leases.Holders.Inside(w.run, func() error { return write(tx) })
		if err != nil {
			err = work.ReadError(err)
		}
		return err
	}, encode)
}

// Write implements [work.Writer].
func (w *writer) Write(ctx context.Context, statements work.Writes, checkpoint json.RawMessage) error {
	var encode func() (json.RawMessage, error)
	if checkpoint != nil {
		encode = func() (json.RawMessage, error) { return checkpoint, nil }
	}
	return w.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := statements.Run(ctx, tx); err != nil {
			return fmt.Errorf("write of job %d: %w", w.run.Lease.JobID, err)
		}
		return nil
	}, encode)
}

// tx runs write in a transaction that locks the lease, and commits it together with the checkpoint that encode returns. If encode is nil,
// there is no checkpoint.
func (w *writer) tx(ctx context.Context, write func(context.Context, pgx.Tx) error, encode func() (json.RawMessage, error)) error {
	if w.leases.Holders.IsInside() {
		return identity.ErrOpen
	}
	var (
		checkpoint json.RawMessage
		last       end
	)
	if encode != nil {
		last.finish = func(ctx context.Context, tx *store.Holding) error {
			return tx.Checkpoint(ctx, w.leases.Store, w.run.Lease.JobID, checkpoint)
		}
	}
	err := w.leases.run(ctx, w.run, w.leases.Pool, func(ctx context.Context, tx pgx.Tx) error {
		err := write(ctx, tx)
		if err != nil || encode == nil {
			return err
		}
		checkpoint, err = encode()
		return err
	}, last)
	if err != nil {
		return becauseOf(ctx, err)
	}
	w.run.watchdog.Touch()
	return failpoint.Hit(failpoint.CheckpointDone)
}

// becauseOf adds ctx's cancellation cause, such as [job.ErrCancelled], to the error from a transaction that ended because ctx was done. It
// leaves errors that report an unknown commit outcome unchanged.
func becauseOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) && !errors.Is(err, job.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Progress implements [work.Writer].
func (w *writer) Progress(p job.Progress) {
	w.run.watchdog.Touch()
	w.run.progress.Set(p)
}

// Emit implements [work.Writer].
func (w *writer) Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error {
	w.run.watchdog.Touch()
	e := store.Emission{Event: event, Level: level, Message: message, Fields: fields, At: time.Now()}
	if err := w.run.Events.Add(ctx, e); err != nil {
		return fmt.Errorf("emit %s of job %d: %w", event, w.run.Lease.JobID, err)
	}
	return nil
}

// turnWithin is the maximum time that a checkpoint waits for an open transaction of its job.
const turnWithin = 10 * time.Second

// Checkpoint implements [work.Writer].
func (w *writer) Checkpoint(ctx context.Context, v json.RawMessage) error {
	if w.leases.Holders.IsInsideOf(w.run) {
		return fmt.Errorf("store checkpoint of job %d: %w", w.run.Lease.JobID, identity.ErrOpen)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(w.leases.alive, func() { cancel(job.ErrShutdown) })
	defer stop()
	patience := time.NewTimer(turnWithin)
	defer patience.Stop()
	select {
	case w.run.turn <- struct{}{}:
		defer func() { <-w.run.turn }()
	case <-patience.C:
		return fmt.Errorf("store checkpoint of job %d: %w", w.run.Lease.JobID, identity.ErrOpen)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for backoff := routine.NewBackoff(); ; {
		err := w.leases.Commands.Keep(ctx, w.run.Lease, v)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// It is safe to retry a write that succeeded without a reply, because the retry stores the same value.
		err = w.run.orGone(err)
		if _ = w.leases.DBError(err); !store.Transient(err) && !store.Unknown(err) || backoff.Tries > 50 {
			return err
		}
		if w.run.IsLost() {
			return w.run.Loss()
		}
		if !backoff.Wait(ctx) {
			return err
		}
	}
	w.run.watchdog.Touch()
	return failpoint.Hit(failpoint.CheckpointDone)
}

// PreviousResult implements [work.Writer].
func (w *writer) PreviousResult(ctx context.Context) (json.RawMessage, error) {
	return w.leases.Commands.Result(ctx, *w.run.Claimed.ParentID)
}

// Failure implements [work.Writer].
func (w *writer) Failure(ctx context.Context) (job.Failure, error) {
	f, err := view.Failure(ctx, w.leases.Commands, w.run.Claimed.PipelineID)
	if err != nil {
		return f, fmt.Errorf("read the failure that job %d follows: %w", w.run.Claimed.ID, err)
	}
	return f, nil
}

// Branches implements [work.Writer].
func (w *writer) Branches(ctx context.Context) iter.Seq2[job.Branch, error] {
	c := w.run.Claimed
	child := c.Group != nil && c.ParentID != nil && *c.Group == *c.ParentID
	if c.ParentID == nil || child {
		return func(yield func(job.Branch, error) bool) {
			yield(job.Branch{}, fmt.Errorf("read the children that job %d joins: %w", c.ID, job.ErrNotFound))
		}
	}
	return w.leases.Branches(ctx, *c.ParentID)
}

// CompletionToken implements [work.Writer].
func (w *writer) CompletionToken(ctx context.Context) (string, error) {
	return w.leases.Commands.Token(ctx, w.run.Lease, rand.Text())
}
