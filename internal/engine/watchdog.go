package engine

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// staleAfter returns how long a run's handler may go without a sign of life, or 0 if there is no limit.
func (i *Identity) staleAfter(one *Run) time.Duration {
	if one.handler.StaleAfter != nil {
		return *one.handler.StaleAfter
	}
	if after, set := i.Lanes.StaleAfter(one.Claimed.Lane); set {
		return after
	}
	return i.Opts.StaleAfter
}

// watchCancelled calls watchStuck, once, if the handler is running and its context has ended. The executor calls it both when the handler
// starts and when the context ends. For runs without a timeout, this replaces context.AfterFunc, which allocates 480 bytes.
func (x *executor) watchCancelled(one *Run) {
	if one.goroutine.Load() != 0 && one.Ctx.Err() != nil && one.watching.CompareAndSwap(false, true) {
		go x.watchStuck(one)
	}
}

// watchStuck is called when a handler's context has ended. It gives the handler some time to return, and then writes the outcome without
// it. The handler keeps its slot until it returns, because it still uses this process's resources.
func (x *executor) watchStuck(one *Run) {
	timer := time.NewTimer(x.Opts.StuckAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-one.Ended:
		return
	}
	if !one.Settled.CompareAndSwap(false, true) {
		return
	}
	cause := context.Cause(one.Ctx)
	x.Metrics.Stuck.Inc()
	x.Log.ErrorContext(one.Ctx, "handler ignores its cancelled context", append(one.attrs(), telemetry.Cause, cause, telemetry.Goroutines, stacks())...)
	one.Events.Close()
	x.conclude(one, nil, fmt.Errorf("handler ignored its cancelled context for %s: %w", x.Opts.StuckAfter, cause))
}

func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}

// startWatchdog starts to monitor the run for signs of life if a limit applies.
func (x *executor) startWatchdog(one *Run) {
	after := x.staleAfter(one)
	one.watchdog.Start(one.cancel, after)
	if now := x.staleAfter(one); now != after { // the lane's limit may have changed before the watchdog started
		one.watchdog.Limit(now)
	}
}
