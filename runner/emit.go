package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// emission is a handler's event on its way into the history.
type emission struct {
	event, level, message string
	fields                json.RawMessage
}

// emissions are the events that a handler emits while a transaction of its own holds its job's row: they are written in
// that transaction, for any other would wait for it.
type emissions struct {
	mu     sync.Mutex
	open   bool
	queued []emission
}

// Emit appends an event to the job's history, visible at once, or with the commit when it is called while a [Job.Tx] or
// InTx of this job is open. fields encode to JSON; nil is none. level is debug, info, warn or error; empty is info.
func (c *core) Emit(ctx context.Context, event, level, message string, fields any) error {
	c.pulse.beat()
	e := emission{event: clean(event, 100), level: level, message: clean(message, job.MaxErrorBytes)}
	if fields != nil {
		var err error
		if e.fields, err = encode(fields, job.MaxArgsBytes); err != nil {
			return fmt.Errorf("encode fields of event %s: %w", event, err)
		}
	}
	if c.emissions.keep(e) {
		return nil
	}
	return c.r.front.Emit(ctx, c.lease, e.event, e.level, e.message, e.fields)
}

// keep takes an event in when a transaction is open.
func (s *emissions) keep(e emission) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		s.queued = append(s.queued, e)
	}
	return s.open
}

// begin opens a try of a transaction: what an earlier try emitted is emitted again by this one.
func (s *emissions) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.queued = true, nil
}

// take returns what is queued, and closes the queue when the transactions are over.
func (s *emissions) take(over bool) []emission {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.queued
	if over {
		s.open, s.queued = false, nil
	}
	return list
}

// emitIn writes in a transaction what was emitted while it was open.
func (c *core) emitIn(ctx context.Context, tx pgx.Tx) error {
	for _, e := range c.emissions.take(false) {
		if err := c.r.store.EmitIn(ctx, tx, c.lease, e.event, e.level, e.message, e.fields); err != nil {
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
	for _, e := range list {
		if err := c.r.front.Emit(ctx, c.lease, e.event, e.level, e.message, e.fields); err != nil {
			c.r.log.DebugContext(ctx, "event could not be written", telemetry.JobID, c.ID(), "event", e.event, telemetry.Err, err)
			return
		}
	}
}
