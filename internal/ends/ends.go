// Package ends reports the ends of jobs that statements of this process wrote: it counts them, and calls the host's hooks. The
// code that ends a job calls [Ends.Report] or [Ends.ReportAll] after its commit. An end cannot be counted in any other way.
package ends

import (
	"context"
	"log/slog"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Hook is called with an end.
type Hook func(context.Context, job.End)

// Hooks are the host's hooks; nil: none.
type Hooks struct {
	End   Hook // for the end of a job
	Retry Hook // for a failed try that another one follows: the job is pending
}

// Ends reports ends. Its methods are safe for concurrent use.
type Ends struct {
	counts *telemetry.Ends
	hooks  Hooks
	calls  *calls
}

// New returns an Ends that counts in m, and calls hooks.
func New(m *telemetry.Metrics, hooks Hooks, log *slog.Logger, repeated *telemetry.Damped) *Ends {
	return &Ends{counts: telemetry.NewEnds(m), hooks: hooks, calls: newCalls(log, repeated)}
}

// Of returns the counters of a kind with a handler in this process.
func (e *Ends) Of(kind string) *telemetry.KindEnds { return e.counts.Of(kind) }

// Report reports an end. kind has the counters of its kind, or is nil. It does not block.
func (e *Ends) Report(kind *telemetry.KindEnds, end job.End) {
	if kind == nil {
		e.counts.Count(end.State, end.ErrorClass, end.Kind)
	} else {
		kind.Of(end.State, end.ErrorClass).Inc()
	}
	e.call(e.hooks.End, end)
}

// ReportRetry reports the end of a try that another one follows. It does not block.
func (e *Ends) ReportRetry(end job.End) { e.call(e.hooks.Retry, end) }

func (e *Ends) call(hook Hook, end job.End) {
	if hook == nil {
		return
	}
	if end.ErrorClass == job.ClassPanic {
		end.Error, end.Stack = guard.SplitStack(end.Error)
	}
	e.calls.add(hook, end)
}

// ReportAll reports the ends that a statement wrote.
func (e *Ends) ReportAll(list []job.End) {
	for _, end := range list {
		e.Report(nil, end)
	}
}

// Drain waits a few seconds at most for the calls of the hooks: see [calls.drain].
func (e *Ends) Drain() { e.calls.drain(drainFor) }
