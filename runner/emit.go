package runner

import (
	"context"
	"fmt"
	"time"

	plain "github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
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
		if e.Fields, err = plain.Encode(fields, job.MaxArgsBytes); err != nil {
			return fmt.Errorf("encode fields of event %s: %w", event, err)
		}
	}
	if c.far != nil {
		return c.far.Emit(ctx, e.Event, e.Level, e.Message, e.Fields)
	}
	if err := c.events.Add(ctx, e); err != nil {
		return fmt.Errorf("emit %s of job %d: %w", e.Event, c.ID(), err)
	}
	return nil
}
