package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// turnWithin is how long a checkpoint waits for a transaction of its job that is open.
const turnWithin = 10 * time.Second

// errTurn says why a checkpoint could not be kept.
var errTurn = errors.New("a transaction of the job is open: inside Job.Tx, give the checkpoint to it")

// Checkpoint keeps v as the job's checkpoint: how far it is, for the run that goes on after a crash, an error or a
// shutdown. It costs one round trip; a handler that writes as well uses [Job.Tx], so that both are one commit. v encodes
// to at most 1 MiB of JSON. A checkpoint sets the count of the job's crashes back.
//
// It is kept when Checkpoint returns nil, and while the connection breaks it is tried again until ctx ends. It returns
// [job.ErrLeaseLost], [job.ErrGone] or [job.ErrCancelled], with nothing kept. A handler that is told to end by [job.ErrShutdown] can
// still keep one, with [context.WithoutCancel]. While a transaction of the job is open Checkpoint waits for it, at most ten
// seconds.
func (c *core) Checkpoint(ctx context.Context, v any) error {
	kept, err := encode(v, job.MaxArgsBytes)
	if err != nil {
		return fmt.Errorf("encode checkpoint of job %d: %w", c.ID(), err)
	}
	if c.far != nil {
		if err := c.far.Checkpoint(ctx, kept); err != nil {
			return err
		}
		c.checkpoint.Store(&kept)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(c.r.flusher.life(), func() { cancel(job.ErrShutdown) })
	defer stop()
	patience := time.NewTimer(turnWithin)
	defer patience.Stop()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-patience.C:
		return fmt.Errorf("keep checkpoint of job %d: %w", c.ID(), errTurn)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for backoff := wait.NewBackoff(); ; {
		err := c.r.front.Keep(ctx, c.Lease, kept)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Also when the first one was kept and its reply lost: the second keeps the same.
		err = c.orGone(err)
		if _ = c.r.dbError(err); !store.Transient(err) && !store.Unknown(err) || backoff.Tries > 50 {
			return err
		}
		if c.isLost() {
			return c.loss()
		}
		if !backoff.Wait(ctx) {
			return err
		}
	}
	c.checkpoint.Store(&kept)
	c.pulse.beat()
	return failpoint.Hit(failpoint.CheckpointDone)
}

// LastCheckpoint decodes the job's latest checkpoint into v and reports whether there is one: the last that this run kept,
// or else the last of the runs before. Checkpoints survive errors, crashes and takeovers.
func (c *core) LastCheckpoint(v any) (bool, error) {
	last := json.RawMessage(c.Claimed.Checkpoint)
	if kept := c.checkpoint.Load(); kept != nil {
		last = *kept
	}
	if last == nil {
		return false, nil
	}
	return true, json.Unmarshal(last, v)
}
