package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// call is one call of the activity. It implements [work.Writer]: reads go to PostgreSQL, and progress, events and checkpoints go into the
// heartbeat details.
type call struct {
	work.Writer // used for reads
	client      client.Client
	id          int64
	token       []byte
	attempt     int           // this activity call's number, counted from 1; keeps rising even if an operator resets Temporal's count
	within      time.Duration // how long heartbeats may be missing before Temporal calls the handler elsewhere
	grace       time.Duration // how long a handler may continue after its worker has begun to stop
	stop        <-chan struct{}
	cancel      context.CancelCauseFunc
	watchdog    routine.Watchdog

	sending sync.Mutex // held until Temporal has replied, so that heartbeats carry the details in order
	mu      sync.Mutex // guards the following fields
	details wire.Details
	keeping json.RawMessage // the checkpoint that is being sent
	over    bool            // the handler has returned
}

// maxEvents is the maximum number of events that a run keeps. They are written to the job's history when the run ends.
const maxEvents = 1000

// beats is the number of heartbeats that a worker sends within the heartbeat timeout, after which it counts as dead.
const beats = 5

// beat sends a heartbeat with the current details.
func (c *call) beat(ctx context.Context) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	d := c.details
	c.mu.Unlock()
	return c.send(ctx, d)
}

// send sends a heartbeat with the given details. The caller must hold c.sending. If an operator has paused the activity, it continues until
// its handler returns.
func (c *call) send(ctx context.Context, d wire.Details) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.within/beats, time.Second))
	defer cancel()
	err := c.client.RecordActivityHeartbeat(ctx, c.token, d)
	if errors.Is(err, activity.ErrActivityPaused) {
		err = nil
	}
	return err
}

// keepBeating sends heartbeats until the handler has returned, and cancels the handler's context on request. A cancelled handler may need
// time to clean up; without heartbeats, its job would run again or end in the meantime.
func (c *call) keepBeating(ctx context.Context, returned <-chan struct{}, keepRunning bool) {
	ctx = context.WithoutCancel(ctx)
	ticker := time.NewTicker(c.within / beats)
	defer ticker.Stop()
	stop, last := c.stop, time.Now()
	var over <-chan time.Time
	for {
		select {
		case <-returned:
			return
		case <-stop:
			stop, over = nil, time.After(c.grace)
			continue
		case <-over:
			over = nil
			c.cancel(job.ErrShutdown)
			continue
		case <-ticker.C:
		}
		err := c.beat(ctx)
		var (
			cancelled *temporal.CanceledError
			unknown   *serviceerror.NotFound
		)
		switch {
		case err == nil:
			last = time.Now()
		case errors.As(err, &cancelled):
			last = time.Now()
			c.cancel(job.ErrCancelled)
		case errors.Is(err, activity.ErrActivityReset): // an operator has requested another call of the handler
			last = time.Now()
			c.cancel(job.ErrLeaseLost)
		case errors.As(err, &unknown): // another worker is running the activity, or the run was terminated
			c.cancel(job.ErrLeaseLost)
			return
		case time.Since(last) >= c.within && !keepRunning:
			c.cancel(job.ErrLeaseLost)
		}
	}
}

// errInPostgreSQL is returned for writes that must be part of the transaction that ends the job.
var errInPostgreSQL = errors.New("a lane of Temporal has no transaction of PostgreSQL that belongs to the job: write on a pool of the handler's, " +
	"idempotently and only if Job.Fence is not lower than the fence of the last write, or set the lane's engine to postgres")

// Tx implements [work.Writer]. It always fails.
func (c *call) Tx(context.Context, work.TxFunc, func() (json.RawMessage, error)) error {
	return job.Permanent(fmt.Errorf("write under the lease of job %d: %w", c.id, errInPostgreSQL))
}

// Write implements [work.Writer]. It always fails.
func (c *call) Write(ctx context.Context, _ work.Writes, _ json.RawMessage) error {
	return c.Tx(ctx, nil, nil)
}

// Progress implements [work.Writer].
func (c *call) Progress(p job.Progress) {
	c.watchdog.Touch()
	c.mu.Lock()
	to := &c.details.Progress
	if p.Done != nil {
		to.Done, to.Total = p.Done, p.Total
	}
	if p.Message != nil {
		to.Message = p.Message
	}
	c.mu.Unlock()
}

// Emit implements [work.Writer].
func (c *call) Emit(_ context.Context, event, level, message string, fields json.RawMessage) error {
	c.watchdog.Touch()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return job.ErrLeaseLost
	}
	if len(c.details.Events) >= maxEvents {
		return fmt.Errorf("%w: emit %s of job %d: a run in a lane of Temporal keeps %d events", job.ErrTooLarge, event, c.id, maxEvents)
	}
	list := append(slices.Clip(c.details.Events), store.Emission{Event: event, Level: level, Message: message, Fields: fields, At: time.Now()})
	checkpoint := c.details.Checkpoint
	if len(c.keeping) > len(checkpoint) {
		checkpoint = c.keeping
	}
	if err := c.fits(wire.Details{Checkpoint: checkpoint, Events: list}); err != nil {
		return fmt.Errorf("emit %s of job %d: %w", event, c.id, err)
	}
	c.details.Events = list
	return nil
}

// fits returns an error if Temporal would reject the details.
func (c *call) fits(d wire.Details) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return wire.TooLarge("checkpoint and events", len(raw))
}

// Checkpoint implements [work.Writer]. It returns once Temporal has stored the checkpoint.
func (c *call) Checkpoint(ctx context.Context, v json.RawMessage) error {
	for backoff := routine.NewBackoff(); ; {
		err := c.keep(ctx, v)
		var (
			cancelled *temporal.CanceledError
			unknown   *serviceerror.NotFound
		)
		switch {
		case err == nil:
			c.watchdog.Touch()
			return nil
		case errors.As(err, &cancelled):
			c.cancel(job.ErrCancelled)
			return job.ErrCancelled
		case errors.As(err, &unknown), errors.Is(err, activity.ErrActivityReset):
			c.cancel(job.ErrLeaseLost)
			return job.ErrLeaseLost
		case errors.Is(err, job.ErrTooLarge):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if !backoff.Wait(ctx) {
			return context.Cause(ctx)
		}
	}
}

// keep stores a checkpoint and resets the number of crashes, because the job has made progress.
func (c *call) keep(ctx context.Context, v json.RawMessage) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	d := c.details
	d.Checkpoint, d.Starts, d.Forgiven = v, 1, true
	err := c.fits(d)
	if err == nil {
		c.keeping = v
	}
	c.mu.Unlock()
	if err == nil {
		err = c.send(ctx, d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeping = nil; err == nil {
		c.details.Checkpoint, c.details.Starts, c.details.Forgiven = d.Checkpoint, d.Starts, d.Forgiven
	}
	return err
}
