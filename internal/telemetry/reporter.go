package telemetry

import (
	"context"
	"log/slog"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/job"
)

// Hook is called when a job or an attempt has finished.
type Hook func(context.Context, job.End)

// Hooks holds the host's hooks, any of which can be nil.
type Hooks struct {
	End   Hook // called when a job ends
	Retry Hook // called after a failed attempt that will be retried; the job is pending
}

// Reporter counts finished jobs and calls the hooks. It is safe for concurrent use.
type Reporter struct {
	Stats  *MinuteCounter // counts for the statistics table, which the pod writes once a minute
	counts *Ends
	hooks  Hooks
	calls  *calls
}

// NewReporter returns a Reporter whose counters belong to m and which calls the given hooks.
func NewReporter(m *Metrics, hooks Hooks, log *slog.Logger, repeated *Damped) *Reporter {
	return &Reporter{Stats: NewMinuteCounter(), counts: NewEnds(m), hooks: hooks, calls: newCalls(log, repeated)}
}

// Of returns the counters for a kind with a handler in this process.
func (e *Reporter) Of(kind string) *KindEnds { return e.counts.Of(kind) }

// Report is like [Reporter.ReportRun], but for a job that ended without its handler returning.
func (e *Reporter) Report(kind *KindEnds, end job.End) { e.ReportRun(kind, end, NoRun) }

// ReportRun reports a finished job, with the wait and run time of its last attempt. The kind argument holds the counters for the job's
// kind, or is nil. ReportRun does not block.
func (e *Reporter) ReportRun(kind *KindEnds, end job.End, times RunTimes) {
	e.Stats.Count(end.Lane, end.Kind, end.State, times)
	if kind == nil {
		e.counts.Count(end.State, end.ErrorClass, end.Kind)
	} else {
		kind.Of(end.State, end.ErrorClass).Inc()
	}
	e.call(e.hooks.End, end)
}

// ReportRetry reports a failed attempt that will be retried. It does not block.
func (e *Reporter) ReportRetry(end job.End) { e.call(e.hooks.Retry, end) }

func (e *Reporter) call(hook Hook, end job.End) {
	if hook == nil {
		return
	}
	if end.ErrorClass == job.ClassPanic {
		end.Error, end.Stack = routine.SplitStack(end.Error)
	}
	e.calls.add(hook, end)
}

// ReportAll reports the jobs that a statement has finished.
func (e *Reporter) ReportAll(list []job.End) {
	for _, end := range list {
		e.Report(nil, end)
	}
}

// Drain waits for the remaining hook calls, for a few seconds at most. See [calls.drain].
func (e *Reporter) Drain() { e.calls.drain(drainFor) }
