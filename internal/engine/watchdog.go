package engine

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// inactivityTimeout returns how long a run's handler may go without a sign of life, or 0 if there is no limit.
func (i *shared) inactivityTimeout(run *Run) time.Duration {
	if run.handler.InactivityTimeout != nil {
		return *run.handler.InactivityTimeout
	}
	if after, set := i.Lanes.InactivityTimeout(run.Claimed.Lane); set {
		return after
	}
	return i.Opts.InactivityTimeout
}

// watchCancelled calls watchStuck, once, if the handler is running and its context has ended. The executor calls it both when the handler
// starts and when the context ends. For runs without a timeout, this replaces context.AfterFunc, which allocates 480 bytes.
func (x *executor) watchCancelled(run *Run) {
	if run.goroutine.Load() != 0 && run.Ctx.Err() != nil && run.watching.CompareAndSwap(false, true) {
		go x.watchStuck(run)
	}
}

// watchStuck is called when a handler's context has ended. It gives the handler some time to return, and then writes the outcome without
// it. The handler keeps its slot until it returns, because it still uses this process's resources.
func (x *executor) watchStuck(run *Run) {
	timer := time.NewTimer(x.Opts.StuckAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-run.Ended:
		return
	}
	if !run.Settled.CompareAndSwap(false, true) {
		return
	}
	cause := context.Cause(run.Ctx)
	x.Metrics.Stuck.Inc()
	x.Log.ErrorContext(run.Ctx, "handler ignores its cancelled context", append(run.attrs(), telemetry.Cause, cause, telemetry.Goroutines, stacks())...)
	run.Events.Close()
	x.conclude(run, nil, fmt.Errorf("handler ignored its cancelled context for %s: %w", x.Opts.StuckAfter, cause))
}

func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}

// startWatchdog starts to monitor the run for signs of life if a limit applies.
func (x *executor) startWatchdog(run *Run) {
	after := x.inactivityTimeout(run)
	run.watchdog.Start(run.cancel, after)
	if now := x.inactivityTimeout(run); now != after { // the lane's limit may have changed before the watchdog started
		run.watchdog.Limit(now)
	}
}
