// Package journal writes the events and the progress of claims to the database at a limited rate. [Events] keeps the order and reports
// every lost event: Add returns the error from an immediate write, and the error from a late write is logged and returned by the next Add.
// [Progress] writes only the latest value. Both write at most four times a second per claim, and once more before the claim ends. If
// handlers of several jobs are waiting for their events to be written, the events share a commit.
//
// The package encapsulates the rate limit, the buffers, the group commit and the retries. It neither depends on the engine nor decides
// which code may emit events.
package journal

import (
	"context"
	"log/slog"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// interval is the minimum interval between two writes for the same claim. It bounds the cost of a handler that emits events in a tight
// loop.
const interval = 250 * time.Millisecond

const (
	singleWriters = 2   // maximum number of concurrent statements that merge single events of different jobs
	singleLimit   = 500 // maximum number of events in such a statement
)

// Store is the part of [store.Store] that a journal uses.
type Store interface {
	Emit(ctx context.Context, claim job.Lease, list ...store.Emission) error
	EmitIn(ctx context.Context, tx store.DB, claim job.Lease, list ...store.Emission) error
	EmitMany(ctx context.Context, list []store.ClaimEmission) (written map[job.Lease]bool, err error)
	Progress(ctx context.Context, claim job.Lease, p job.Progress) error
}

// Writer writes the events and progress of all claims of a process.
type Writer struct {
	store   Store
	log     *slog.Logger
	count   func(error) error
	singles *routine.Batcher[store.ClaimEmission, bool] // single events of different jobs; the result tells whether an event was written
}

// NewWriter returns a writer that calls count with every database error. The count function must return the error.
func NewWriter(s Store, log *slog.Logger, count func(error) error) *Writer {
	return &Writer{store: s, log: log, count: count, singles: routine.NewBatcher(singleWriters, singleLimit, func(list []store.ClaimEmission) ([]bool, error) {
		written, err := s.EmitMany(context.Background(), list) // the store sets a timeout
		if err != nil && !store.Refused(err) {
			return nil, err
		}
		results := make([]bool, len(list)) // if PostgreSQL rejected an event, writing each one separately shows which
		for i, e := range list {
			results[i] = err == nil && written[e.Lease]
		}
		return results, nil
	})}
}

// Claim represents a claim whose handler emits events.
type Claim interface {
	ID() job.Lease
	// Lost reports whether the lease is permanently lost.
	Lost() bool
	// Check inspects the error from a write, and returns the error to report to the caller.
	Check(error) error
}

// write writes a claim's events in one statement. A single event shares the statement with events of other jobs.
func (w *Writer) write(ctx context.Context, c Claim, list []store.Emission) error {
	if len(list) == 1 {
		if written, err := w.singles.Do(ctx, store.ClaimEmission{Lease: c.ID(), Emission: list[0]}); written || err != nil {
			return w.count(err)
		}
	}
	return w.count(c.Check(w.store.Emit(ctx, c.ID(), list...)))
}

// writeLate writes events that no handler is waiting for. It retries for a few seconds, but only if it is certain that the events were not
// written, because no event may be written twice.
func (w *Writer) writeLate(c Claim, list []store.Emission) error {
	ctx := context.Background() // each statement has its own timeout
	for backoff := routine.NewBackoff(); ; {
		err := w.write(ctx, c, list)
		if err == nil {
			return nil
		}
		if store.Unknown(err) || !store.Transient(err) || c.Lost() || backoff.Tries >= 8 || !backoff.Wait(ctx) {
			w.logLoss("could not write events", c, list, err)
			return err
		}
	}
}

func (w *Writer) logLoss(text string, c Claim, list []store.Emission, err error) {
	w.log.WarnContext(context.Background(), text, telemetry.JobID, c.ID().JobID, telemetry.Events, len(list), telemetry.First, list[0].Event, telemetry.Err, err)
}
