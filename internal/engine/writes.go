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
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// A run is the [Writer] of its job. Each write of the handler is a sign of life.

// Tx implements [work.Writer].
func (one *Run) Tx(ctx context.Context, write work.TxFunc, encode func() (json.RawMessage, error)) error {
	err := one.exec.leases.run(ctx, one, one.exec.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := write(tx); err != nil {
			return err
		}
		if err := one.Events.WriteIn(ctx, tx); err != nil {
			return err
		}
		if encode == nil {
			return nil
		}
		v, err := encode()
		if err != nil {
			return err
		}
		return store.Checkpoint(ctx, one.exec.Store, tx, one.Lease.JobID, v)
	}, nil)
	if err != nil {
		return err
	}
	one.watchdog.Touch()
	return failpoint.Hit(failpoint.CheckpointDone)
}

// Progress implements [work.Writer].
func (one *Run) Progress(p job.Progress) {
	one.watchdog.Touch()
	one.progress.Set(p)
}

// Emit implements [work.Writer].
func (one *Run) Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error {
	one.watchdog.Touch()
	e := store.Emission{Event: event, Level: level, Message: message, Fields: fields, At: time.Now()}
	if err := one.Events.Add(ctx, e); err != nil {
		return fmt.Errorf("emit %s of job %d: %w", event, one.Lease.JobID, err)
	}
	return nil
}

// turnWithin is how long a checkpoint waits for a transaction of its job that is open.
const turnWithin = 10 * time.Second

// errTurn says why a checkpoint could not be kept.
var errTurn = errors.New("a transaction of the job is open: inside Job.Tx, give the checkpoint to it")

// Checkpoint implements [work.Writer].
func (one *Run) Checkpoint(ctx context.Context, v json.RawMessage) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(one.exec.leases.alive, func() { cancel(job.ErrShutdown) })
	defer stop()
	patience := time.NewTimer(turnWithin)
	defer patience.Stop()
	select {
	case one.turn <- struct{}{}:
		defer func() { <-one.turn }()
	case <-patience.C:
		return fmt.Errorf("keep checkpoint of job %d: %w", one.Lease.JobID, errTurn)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for backoff := wait.NewBackoff(); ; {
		err := one.exec.Commands.Keep(ctx, one.Lease, v)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Also when the first one was kept and its reply lost: the second keeps the same.
		err = one.orGone(err)
		if _ = one.exec.DBError(err); !store.Transient(err) && !store.Unknown(err) || backoff.Tries > 50 {
			return err
		}
		if one.IsLost() {
			return one.Loss()
		}
		if !backoff.Wait(ctx) {
			return err
		}
	}
	one.watchdog.Touch()
	return failpoint.Hit(failpoint.CheckpointDone)
}

// ParentResult implements [work.Writer].
func (one *Run) ParentResult(ctx context.Context) (json.RawMessage, error) {
	return one.exec.Commands.Result(ctx, *one.Claimed.ParentID)
}

// Branches implements [work.Writer].
func (one *Run) Branches(ctx context.Context) iter.Seq2[job.Branch, error] {
	c := &one.Claimed
	child := c.Group != nil && c.ParentID != nil && *c.Group == *c.ParentID
	if c.ParentID == nil || child {
		return func(yield func(job.Branch, error) bool) {
			yield(job.Branch{}, fmt.Errorf("read the branches that job %d joins: %w", c.ID, job.ErrNotFound))
		}
	}
	return one.exec.Branches(ctx, *c.ParentID)
}

// CompletionToken implements [work.Writer].
func (one *Run) CompletionToken(ctx context.Context) (string, error) {
	return one.exec.Commands.Token(ctx, one.Lease, rand.Text())
}
