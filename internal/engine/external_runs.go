package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// ExternalRun is a run that a handler outside this process has finished, under a claim that this engine may settle.
type ExternalRun struct {
	Outcome    *work.Outcome // nil means success without a result, unless Err is set
	Err        error         // see [work.ReportedError]
	Cause      error         // why the handler's context was cancelled; nil if it was not
	Took       time.Duration // how long the handler ran
	Events     []store.Emission
	Progress   job.Progress
	Checkpoint json.RawMessage // the latest checkpoint, stored if the job runs again; nil if there is none
}

// Note writes the events and the checkpoint, if not nil, of a claim whose handler ran outside this process. It returns only errors after
// which another call may succeed. It logs the others, because the job must end regardless.
func (e *Engine) Note(ctx context.Context, l job.Lease, events []store.Emission, checkpoint json.RawMessage) (err error) {
	if len(events) > 0 {
		err = e.Commands.Emit(ctx, l, events...)
	}
	if checkpoint != nil && !store.Transient(err) && !store.Unknown(err) {
		err = errors.Join(err, e.Commands.Keep(ctx, l, checkpoint))
	}
	if store.Transient(err) || store.Unknown(err) {
		return e.DBError(err)
	}
	if err != nil && !errors.Is(err, job.ErrLeaseLost) && !errors.Is(err, job.ErrGone) && !errors.Is(err, job.ErrCancelled) {
		e.Log.WarnContext(ctx, "could not write the events or the checkpoint of a job", telemetry.JobID, l.JobID, telemetry.Err, err)
	}
	return nil
}

// Conclude ends, retries, snoozes or fans out a job as if its handler had returned in this process. It blocks until the run is over, and
// reports whether this call wrote the outcome. If it did not, the claim may have ended in another way, or the engine may be stopping.
// Conclude writes the events first, so repeating a failed call writes them again.
func (e *Engine) Conclude(ctx context.Context, a store.Adopted, v ExternalRun) (wrote bool, err error) {
	e.Lanes.Adopt(a.Lane)
	run := e.NewRun(&a.Claimed, e.PodID())
	if run == nil {
		e.Lanes.Release(a.Lane, 1)
		return false, errStopped
	}
	run.took.Store(max(int64(v.Took), 1))
	if v.Cause != nil {
		run.cancel(v.Cause)
	}
	e.observeWait(&a.Claimed)
	e.Count.Started(a.Path).Inc()
	run.handler.RunSeconds(v.Took.Seconds())
	if v.Progress != (job.Progress{}) {
		run.progress.Set(v.Progress)
	}
	if v.Err == nil && (v.Outcome == nil || v.Outcome.Snooze == nil) {
		v.Checkpoint = nil
	}
	if err := e.Note(ctx, run.Lease, v.Events, v.Checkpoint); err != nil {
		run.Settled.Store(true)
		run.progress.Close()
		run.Events.Close()
		if e.close(run, nil) {
			e.executor.slotFree(a.Lane)
		}
		return false, err
	}
	if next := e.settleRun(run, v.Outcome, v.Err); next != nil {
		e.workers.Give(next)
	}
	select {
	case <-run.Ended:
		return run.Wrote.Load(), nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
