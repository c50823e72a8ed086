package engine

import (
	"context"
	"encoding/json"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Verdict is the end of a handler that ran outside this process, under a claim that this engine may settle.
type Verdict struct {
	Outcome    *work.Outcome // nil means success without a result, unless Err is set
	Err        error         // see [work.ReportedError]
	Cause      error         // why the handler's context was cancelled; nil if it was not
	Took       time.Duration // how long the handler ran
	Events     []store.Emission
	Progress   job.Progress
	Checkpoint json.RawMessage // the latest checkpoint, stored if the job runs again; nil if there is none
}

// Conclude writes the outcome of a claim as if its handler had returned in this process: it ends, retries, snoozes or fans out the job. It
// blocks until then, and reports whether this call wrote the outcome. If it did not, the claim may have ended in another way, or the engine
// is stopping. The events are written first; they are written again if a call that failed is repeated.
func (e *Engine) Conclude(ctx context.Context, a store.Adopted, v Verdict) (wrote bool, err error) {
	e.Lanes.Adopt(a.Lane)
	one := e.NewRun(a.Claimed, e.Boot())
	if one == nil {
		e.Lanes.Release(a.Lane, 1)
		return false, errStopped
	}
	one.took.Store(max(int64(v.Took), 1))
	if v.Cause != nil {
		one.cancel(v.Cause)
	}
	e.observeWait(&a.Claimed)
	e.Count.Started(a.Path).Inc()
	one.handler.RunSeconds(v.Took.Seconds())
	for _, event := range v.Events {
		_ = one.Events.Add(ctx, event) // its error is returned with the next event, and the journal logs it
	}
	if v.Progress != (job.Progress{}) {
		one.progress.Set(v.Progress)
	}
	if v.Checkpoint != nil && (v.Err != nil || v.Outcome != nil && v.Outcome.Snooze != nil) {
		if err := e.Commands.Keep(ctx, one.Lease, v.Checkpoint); store.Transient(err) || store.Unknown(err) {
			one.Settled.Store(true)
			one.progress.Close()
			one.Events.Close()
			e.close(one, nil)
			return false, e.DBError(err)
		}
	}
	if next := e.settleRun(one, v.Outcome, v.Err); next != nil {
		e.workers.Give(next)
	}
	select {
	case <-one.Ended:
		return one.Wrote.Load(), nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
