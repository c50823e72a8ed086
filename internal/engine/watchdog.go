package engine

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/tracing"
)

// staleAfter returns how long the handler of a run may go without a sign of life, or 0 if there is no limit.
func (i *Identity) staleAfter(one *Run) time.Duration {
	if one.handler.StaleAfter != nil {
		return *one.handler.StaleAfter
	}
	if after, set := i.Lanes.StaleAfter(one.Claimed.Lane); set {
		return after
	}
	return i.Opts.StaleAfter
}

// linkWithin limits how long reading traces may delay the start of a join's handler.
const linkWithin = time.Second

// linkJoin links the span of a join to the fan-out and to its first children. Only a join has a parent but no trace context.
func (x *executor) linkJoin(one *Run) {
	c := &one.Claimed
	if !one.span.Recorded() || c.ParentID == nil || c.Trace != "" {
		return
	}
	ctx, cancel := context.WithTimeout(one.Ctx, linkWithin)
	defer cancel()
	found, err := view.TracesOfFanOut(ctx, x.Commands, c.PipelineID, *c.ParentID, tracing.MaxLinks)
	if err != nil {
		_ = x.DBError(err) // the trace is incomplete, but the job can run
	}
	one.span.Link(found...)
}

// watchStuck runs when a handler's context has ended. It gives the handler time to return, and after that writes the outcome without
// waiting any longer. The handler keeps its slot until it returns, because it still uses resources of this process.
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

// startWatchdog starts monitoring the run for signs of life, if a limit applies.
func (x *executor) startWatchdog(one *Run) {
	after := x.staleAfter(one)
	one.watchdog.Start(one.cancel, after)
	if now := x.staleAfter(one); now != after { // the lane's limit may have changed before the watchdog started
		one.watchdog.Limit(now)
	}
}
