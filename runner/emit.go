package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// Emit appends an event to the job's history. fields encode to JSON, at most 1 MiB; nil is none. level is debug, info, warn
// or error; empty is info.
//
// The first event is visible when Emit returns. A job writes events four times a second at most: those that follow too
// soon are written together, in order, within a quarter of a second, and in any case before the job's end is. When 4,096 of
// them, or 1 MiB, wait for that, Emit waits as well. An event that is emitted while a [Job.Tx] or InTx of this job is open
// is visible with its commit. A crash of the process loses the events that wait, those of the last quarter of a second, and none from
// before them.
//
// When events that were to be written later could not be, the log says so, and the next Emit returns the error. After an
// error the event of this call is not in the history, unless the reply of the database was lost. It returns
// [job.ErrLeaseLost] when the job has been given to another claim, or its handler has returned, and [job.ErrGone] when the job was deleted.
func (c *core) Emit(ctx context.Context, event, level, message string, fields any) error {
	c.pulse.beat()
	e := store.Emission{Event: job.Storable(event, 100), Level: job.Storable(level, 20), Message: job.Storable(message, job.MaxErrorBytes), At: time.Now()}
	if fields != nil {
		var err error
		if e.Fields, err = encode(fields, job.MaxArgsBytes); err != nil {
			return fmt.Errorf("encode fields of event %s: %w", event, err)
		}
	}
	if c.far != nil {
		return c.far.Emit(ctx, e.Event, e.Level, e.Message, e.Fields)
	}
	if err := c.emissions.add(ctx, e); err != nil {
		return fmt.Errorf("emit %s of job %d: %w", e.Event, c.ID(), err)
	}
	return nil
}

// writeEvents writes a handler's events as one statement: a single one together with those of other jobs.
func (c *core) writeEvents(ctx context.Context, list []store.Emission) error {
	if len(list) == 1 {
		if err := c.r.firstEvents.emit(ctx, store.Emitted{Lease: c.lease, Emission: list[0]}); !errors.Is(err, errPassedBy) {
			return c.r.dbError(err)
		}
	}
	return c.r.dbError(c.orGone(c.r.front.Emit(ctx, c.lease, list...)))
}

// writeHeld writes events that nobody waits for. As long as it is certain that they were not written it tries again for a
// few seconds; never when they may have been, for nothing is to be there twice.
func (c *core) writeHeld(list []store.Emission) error {
	ctx := context.Background() // each statement has its own deadline
	for backoff := wait.NewBackoff(); ; {
		err := c.writeEvents(ctx, list)
		if err == nil {
			return nil
		}
		if store.Unknown(err) || !store.Transient(err) || c.isLost() || backoff.Tries >= 8 || !backoff.Wait(ctx) {
			c.r.log.WarnContext(ctx, "events could not be written", telemetry.JobID, c.ID(), telemetry.Events, len(list), telemetry.First, list[0].Event, telemetry.Err, err)
			return err
		}
	}
}

// emitIn writes in a transaction what was emitted while it was open.
func (c *core) emitIn(ctx context.Context, tx pgx.Tx) error {
	for part := range inParts(c.emissions.take(false)) {
		if err := store.EmitIn(ctx, c.r.store, tx, c.lease, part...); err != nil {
			return err
		}
	}
	return nil
}

// emitRest ends the queue. What was emitted in transactions that were not committed is written now: it was seen.
func (c *core) emitRest(committed bool) {
	list := c.emissions.take(true)
	if committed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for part := range inParts(list) {
		if err := c.writeEvents(ctx, part); err != nil {
			c.r.log.WarnContext(ctx, "events of a transaction that was not committed could not be written",
				telemetry.JobID, c.ID(), telemetry.Events, len(part), telemetry.First, part[0].Event, telemetry.Err, err)
			return
		}
	}
}
