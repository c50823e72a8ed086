// Package ends counts the jobs that this process has finished, and calls the host's hooks for them. Code that finishes jobs calls
// [Ends.Report], [Ends.ReportRun] or [Ends.ReportAll] after its commit. Nothing else counts finished jobs. [Ends.ReportRetry] only calls a
// hook.
package ends

import (
	"context"
	"log/slog"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/stats"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Hook is called when a job or an attempt has finished.
type Hook func(context.Context, job.End)

// Hooks holds the host's hooks, any of which can be nil.
type Hooks struct {
	End   Hook // called when a job ends
	Retry Hook // called after a failed attempt that will be retried; the job is pending
}

// Ends counts finished jobs and calls the hooks. It is safe for concurrent use.
type Ends struct {
	Stats  *stats.Counter // counts for the statistics table, which the pod writes once a minute
	counts *telemetry.Ends
	hooks  Hooks
	calls  *calls
}

// New returns an Ends whose counters belong to m and which calls the given hooks.
func New(m *telemetry.Metrics, hooks Hooks, log *slog.Logger, repeated *telemetry.Damped) *Ends {
	return &Ends{Stats: stats.NewCounter(), counts: telemetry.NewEnds(m), hooks: hooks, calls: newCalls(log, repeated)}
}

// Of returns the counters for a kind with a handler in this process.
func (e *Ends) Of(kind string) *telemetry.KindEnds { return e.counts.Of(kind) }

// Report is like [Ends.ReportRun], but for a job that ended without its handler returning.
func (e *Ends) Report(kind *telemetry.KindEnds, end job.End) { e.ReportRun(kind, end, stats.NoRun) }

// ReportRun reports a finished job, with the wait and run time of its last attempt. The kind argument holds the counters for the job's
// kind, or is nil. ReportRun does not block.
func (e *Ends) ReportRun(kind *telemetry.KindEnds, end job.End, times stats.Times) {
	e.Stats.Count(end.Lane, end.Kind, end.State, times)
	if kind == nil {
		e.counts.Count(end.State, end.ErrorClass, end.Kind)
	} else {
		kind.Of(end.State, end.ErrorClass).Inc()
	}
	e.call(e.hooks.End, end)
}

// ReportRetry reports a failed attempt that will be retried. It does not block.
func (e *Ends) ReportRetry(end job.End) { e.call(e.hooks.Retry, end) }

func (e *Ends) call(hook Hook, end job.End) {
	if hook == nil {
		return
	}
	if end.ErrorClass == job.ClassPanic {
		end.Error, end.Stack = routine.SplitStack(end.Error)
	}
	e.calls.add(hook, end)
}

// ReportAll reports the jobs that a statement has finished.
func (e *Ends) ReportAll(list []job.End) {
	for _, end := range list {
		e.Report(nil, end)
	}
}

// Drain waits for the remaining hook calls, for a few seconds at most. See [calls.drain].
func (e *Ends) Drain() { e.calls.drain(drainFor) }
