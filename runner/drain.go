package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// drain waits for the handlers, then for their contexts to end them, then hands back what is left.
func (e *engine) drain(ctx context.Context) {
	if !e.runs.wait(e.opts.ShutdownGrace, e.hurry) {
		e.runs.each(func(one *run) { one.cancel(job.ErrShutdown) })
		// A database that does not answer must not keep the process: its leases run out.
		giveUp := time.AfterFunc(2*time.Second, e.flusher.die)
		defer giveUp.Stop()
		if !e.runs.wait(time.Second, nil) {
			e.handBackRest(ctx)
		}
	}
	e.runs.close()
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := e.handBackStrays(asking); err != nil {
		e.log.WarnContext(ctx, "jobs whose claim's reply was lost are left to the other pods", telemetry.Err, err)
	}
}

// handBackRest hands back the claims of handlers that ignore the end of their context, or that began as next steps after it.
func (e *engine) handBackRest(ctx context.Context) {
	e.runs.each(func(one *run) {
		one.cancel(job.ErrShutdown)
		if one.settled.CompareAndSwap(false, true) {
			e.metrics.Stuck.Inc()
			e.log.WarnContext(ctx, "handler ignores the shutdown: its job is handed back", one.attrs()...)
			e.handBack(one, "the pod is shutting down")
		}
	})
}

// hurryDrain ends the grace of a drain that is under way.
func (e *engine) hurryDrain() { e.hurried.Do(func() { close(e.hurry) }) }
