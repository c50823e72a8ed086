package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// drain waits for the handlers, then for their contexts to end them, then hands back what is left.
func (r *Runner) drain(ctx context.Context) {
	if !r.runs.wait(r.opts.ShutdownGrace, r.hurry) {
		r.runs.each(func(one *run) { one.cancel(job.ErrShutdown) })
		// A database that does not answer must not keep the process: its leases run out.
		giveUp := time.AfterFunc(2*time.Second, r.flusher.die)
		defer giveUp.Stop()
		if !r.runs.wait(time.Second, nil) {
			r.handBackRest(ctx)
		}
	}
	r.runs.close()
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.handBackStrays(asking); err != nil {
		r.log.WarnContext(ctx, "jobs whose claim's reply was lost are left to the other pods", telemetry.Err, err)
	}
}

// handBackRest hands back the claims of handlers that ignore the end of their context, or that began as next steps after it.
func (r *Runner) handBackRest(ctx context.Context) {
	r.runs.each(func(one *run) {
		one.cancel(job.ErrShutdown)
		if one.settled.CompareAndSwap(false, true) {
			r.metrics.Stuck.Inc()
			r.log.WarnContext(ctx, "handler ignores the shutdown: its job is handed back", one.attrs()...)
			r.handBack(one, "the pod is shutting down")
		}
	})
}

// HandBackNow ends the grace of a shutdown that is under way: contexts are cancelled now and jobs handed back.
func (r *Runner) HandBackNow() { r.hurried.Do(func() { close(r.hurry) }) }
