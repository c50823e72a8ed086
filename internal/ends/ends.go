// Package ends reports the ends of jobs that statements of this process wrote: it counts them, and calls the host's hook. The
// code that ends a job calls [Ends.Report] or [Ends.ReportAll] after its commit: there is no other way to count an end.
package ends

import (
	"context"
	"log/slog"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Hook is called with every end.
type Hook func(context.Context, job.End)

// Ends reports ends. Its methods are safe for concurrent use.
type Ends struct {
	counts *telemetry.Ends
	calls  *calls // nil: there is no hook
}

// New returns an Ends that counts in m, and calls hook unless that is nil.
func New(m *telemetry.Metrics, hook Hook, log *slog.Logger, repeated *telemetry.Damped) *Ends {
	e := &Ends{counts: telemetry.NewEnds(m)}
	if hook != nil {
		e.calls = newCalls(hook, log, repeated)
	}
	return e
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
	if e.calls == nil {
		return
	}
	if end.ErrorClass == job.ClassPanic {
		end.Error, end.Stack = guard.SplitStack(end.Error)
	}
	e.calls.add(end)
}

// ReportAll reports the ends of a statement.
func (e *Ends) ReportAll(list []job.End) {
	for _, end := range list {
		e.Report(nil, end)
	}
}

// Drain waits for the calls of the hook, for a few seconds at most: see [calls.drain].
func (e *Ends) Drain() {
	if e.calls != nil {
		e.calls.drain(drainFor)
	}
}
