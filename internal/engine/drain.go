package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// drain waits for the handlers, then for their contexts to end them, then hands back what is left.
func (e *Engine) Drain(ctx context.Context) {
	if !e.Runs.Wait(e.Opts.ShutdownGrace, e.hurry) {
		e.Runs.Each(func(one *Run) { one.cancel(job.ErrShutdown) })
		// A database that does not answer must not keep the process: its leases run out.
		giveUp := time.AfterFunc(2*time.Second, e.flusher.die)
		defer giveUp.Stop()
		if !e.Runs.Wait(time.Second, nil) {
			e.handBackRest(ctx)
		}
	}
	e.Runs.Close()
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := e.handBackStrays(asking); err != nil {
		e.Log.WarnContext(ctx, "jobs whose claim's reply was lost are left to the other pods", telemetry.Err, err)
	}
}

// handBackRest hands back the claims of handlers that ignore the end of their context, or that began as next steps after it.
func (e *Engine) handBackRest(ctx context.Context) {
	e.Runs.Each(func(one *Run) {
		one.cancel(job.ErrShutdown)
		if one.Settled.CompareAndSwap(false, true) {
			e.Metrics.Stuck.Inc()
			e.Log.WarnContext(ctx, "handler ignores the shutdown: its job is handed back", one.attrs()...)
			e.handBack(one, "the pod is shutting down")
		}
	})
}

// hurryDrain ends the grace of a drain that is under way.
func (e *Engine) HurryDrain() { e.hurried.Do(func() { close(e.hurry) }) }
