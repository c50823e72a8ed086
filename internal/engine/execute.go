package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// executor runs the handlers of claimed jobs on a pool of goroutines. It writes the outcomes of runs, which may be finished, parked or
// handed back, and hands over to the next steps.
type executor struct {
	*shared
	workers *WorkerPool[*Run]
	intake  *submitter
	fanOuts *fanOuts
	leases  *claimTx
	flusher *flusher
	groups  *groups
	passed  atomic.Int64 // completions in progress whose slots have already been passed on
}

// NewRun creates a run for a claimed job and adds it to Runs. It returns nil if the engine has stopped.
func (x *executor) NewRun(c *store.Claimed, podID string) *Run {
	k := x.Kinds[c.Kind]
	run := x.Prepare(c, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: podID})
	run.handler, run.MaxAttempts = k, x.maxAttempts(c, k)
	run.Ctx, run.span = x.Tracing.StartRun(context.Background(), run.Claimed) // if the engine has stopped, the span is never exported
	ctx, cancel := context.WithCancelCause(run.Ctx)
	run.Ctx, run.cancel = ctx, func(cause error) { cancel(cause); x.watchCancelled(run) }
	if k.Timeout > 0 {
		limited, done := context.WithTimeoutCause(ctx, k.Timeout, job.ErrTimeout)
		unwatch := context.AfterFunc(limited, func() { x.watchCancelled(run) })
		run.Ctx, run.done = limited, func() { unwatch(); done() }
	}
	if !x.Runs.add(run) {
		run.done()
		return nil
	}
	// Add the run before checking the lease. If the lease is lost concurrently, either LoseLease finds the run in Runs or the check below
	// notices the loss.
	switch {
	case x.Lease.ID() != podID:
		run.lose(job.ErrLeaseLost)
	case !x.Lease.Trusted() && !k.ContinueWithoutDatabase:
		run.cancel(job.ErrLeaseLost)
	}
	return run
}

// Prepare returns a run without adding it to Runs. The run has no handler or context yet, but can already make the job's writes.
func (x *executor) Prepare(claimed *store.Claimed, lease job.Lease) *Run {
	both := &struct { // a single allocation
		Run
		writer
	}{}
	run := &both.Run
	run.Job, run.Ended = work.Job{Claimed: claimed, Lease: lease, Pod: x.Opts.Name, Writer: &both.writer}, make(chan struct{})
	run.loss.lost, run.turn = make(chan struct{}), make(chan struct{}, 1)
	run.cancel, run.done = func(error) {}, func() {}
	both.writer = writer{run, x.leases}
	run.Events.Init(x.Journal, journaled{run})
	run.progress.Init(x.Journal, journaled{run})
	return run
}

// startInserted runs a job that was started on insert. The caller has already reserved a slot in its lane.
func (x *executor) startInserted(podID string, n store.NewJob) bool {
	run := x.newStarted(n, podID, time.Now())
	if run != nil {
		x.workers.Give(run)
	}
	return run != nil
}

// newStarted is like NewRun, for a job that was started on insert. committed is the time at which this was known.
func (x *executor) newStarted(n store.NewJob, podID string, committed time.Time) *Run {
	run := x.NewRun(startedOnInsert(n, x.Clock.Now()), podID)
	if run == nil {
		x.Unknown.Raise() // the engine is stopping: the job belongs to this pod in the table, but is not in Runs
		return nil
	}
	run.handed = committed
	return run
}

// runClaim runs a claimed job. If the job's outcome is written in a separate transaction, runClaim also runs the next step. After a group
// commit, the next step runs on another goroutine.
func (x *executor) runClaim(run *Run, goroutine uint64) {
	for run != nil {
		run = x.runHandler(run, goroutine)
	}
}

// runHandler calls the handler and settles its run. It returns the run of the next step if that step has started in this process.
func (x *executor) runHandler(run *Run, goroutine uint64) (next *Run) {
	run.goroutine.Store(goroutine)
	x.watchCancelled(run)
	_ = failpoint.Hit(failpoint.Launch)
	x.startWatchdog(run)
	x.linkJoin(run)
	began := time.Now()
	x.Count.Started(run.Claimed.Path).Inc()
	if !run.handed.IsZero() {
		x.Metrics.HandoffSeconds.Observe(began.Sub(run.handed).Seconds())
	}
	var outcome *work.Outcome
	err := routine.ErrExited // stays set if the handler calls runtime.Goexit, which ends this goroutine after its deferred calls
	defer func() {
		run.goroutine.Store(0)
		run.watchdog.Stop()
		_ = failpoint.Hit(failpoint.Handled)
		took := time.Since(began)
		run.took.Store(max(int64(took), 1))
		run.handler.RunSeconds(took.Seconds())
		x.NoteRun(run.Claimed.Kind, took)
		next = x.settleRun(run, outcome, err)
	}()
	defer routine.Recover(&err)
	o, failed := run.handler.Run(run.Ctx, &run.Job)
	if failed != nil {
		// Read the error here, where a panic in its methods (on a nil pointer, for example) is attributed to the handler.
		failed = work.ReadError(failed)
	}
	outcome, err = o, failed
	return nil
}

// observeWait records how long a job has waited for its handler to be called.
func (x *executor) observeWait(c *store.Claimed) {
	if wait, known := waited(c); known {
		x.Metrics.WaitSeconds.WithLabelValues(x.Lanes.CountedAs(c.Lane)).Observe(wait.Seconds())
	}
}

// slotFree is called when a slot of a lane has become free.
func (x *executor) slotFree(lane string) {
	x.FillSlots()
	x.SlotFree(lane)
}

// settleRun writes a run's outcome, unless watchStuck has already written it. It returns the run of the next step if this process already
// owns that step, or the run that took over the slot. If the outcome is written by group commit, afterFlush takes over. The run is marked
// as settled first, so that watchStuck does not blame the handler for the time it takes to write progress and events.
func (x *executor) settleRun(run *Run, o *work.Outcome, err error) (next *Run) {
	inTime := run.Settled.CompareAndSwap(false, true)
	run.progress.Close()
	run.Events.Close()
	if inTime {
		var underWay bool
		if next, underWay = x.conclude(run, o, err); underWay {
			return next
		}
	} else {
		x.Metrics.Stuck.Dec()
		x.Log.WarnContext(run.Ctx, "stuck handler returned", run.attrs()...)
	}
	if x.close(run, next) {
		x.slotFree(run.Claimed.Lane)
	}
	return next
}

// close closes a settled run and releases its slot, unless the next step or another job takes over the slot. It reports whether the slot is
// free.
func (x *executor) close(run *Run, next *Run) (free bool) {
	close(run.Ended)
	run.span.End()
	run.done()
	run.cancel(nil)
	x.Waiters.Seen(run.Lease.JobID)
	x.Runs.remove(run)
	switch {
	case run.ahead.passed:
		x.passed.Add(-1)
	case next == nil:
		x.Lanes.Release(run.Claimed.Lane, 1)
	}
	if run.Claimed.Isolated {
		x.Wake()
	}
	return next == nil && !run.ahead.passed
}

// conclude determines the outcome from the handler's return values, and writes or queues it. It returns the run of the next step if this
// process already owns that step or, for a queued outcome, the run that took over the slot. The underWay result reports whether the outcome
// was queued.
func (x *executor) conclude(run *Run, o *work.Outcome, err error) (next *Run, underWay bool) {
	if o == nil {
		o = &work.Outcome{Status: job.OK}
	}
	cause := context.Cause(run.Ctx)
	if err, ok := errors.AsType[*NoOutcome](err); ok {
		x.endWithoutOutcome(run, err)
		return nil, false
	}
	if run.IsLost() {
		failure := ""
		if err != nil {
			failure = err.Error()
		}
		x.stale(run, failure, cause)
		return nil, false
	}
	if err == nil {
		err = o.Validate()
	}
	if err == nil && o.Snooze != nil && !errors.Is(cause, job.ErrCancelled) {
		run.span.Event("job.snoozed")
		x.snooze(run, *o.Snooze)
		return nil, false
	}
	if err == nil {
		err = x.keepUndo(run, o.Undo)
	}
	if err != nil {
		x.concludeError(run, err, cause)
		return nil, false
	}
	if o.Fan != nil {
		next, err = x.fanOut(run, o)
	} else if next, underWay, err = x.finishSucceeded(run, o); underWay {
		return next, true
	}
	return x.concludeWritten(run, next, err, cause), false
}

// concludeWritten continues after an attempt to write an outcome together with the handler's writes. It returns the run of the next step if
// that step has started in this process.
func (x *executor) concludeWritten(run, next *Run, err, cause error) *Run {
	if held, ok := errors.AsType[*heldError](err); ok {
		err, cause = held.err, context.Cause(run.Ctx)
	}
	if err != nil {
		x.concludeError(run, err, cause)
		return nil
	}
	return next
}

// concludeError decides whether a job is handed back, retried or failed.
func (x *executor) concludeError(run *Run, err, cause error) {
	if why := HandedBack(cause); why != "" {
		run.span.Event("job.handed_back")
		x.handBack(run, why)
		return
	}
	f := Judge(err, cause, x.attempts(run))
	run.span.Error(f.Reason, f.Err)
	e := f.FinalOutcome()
	x.hold(run, f)
	if f.Again {
		wait := run.handler.Backoff.Random(run.Claimed.Attempt)
		if f.After != nil {
			wait = *f.After
		}
		x.Log.WarnContext(run.Ctx, "job failed and will be retried", append(run.attrs(), telemetry.Wait, wait, telemetry.ErrorClass, e.Class, telemetry.ErrorCode, e.Code,
			telemetry.Err, e.Error)...)
		err := x.retry(run, wait, store.Retry{Started: run.started(), Message: e.Error, Class: e.Class, Code: e.Code})
		if err == nil {
			run.span.Event("job.retried", attribute.Float64("trapeze.wait_seconds", wait.Seconds()))
			x.Ends.ReportRetry(endOf(run, e, job.Pending))
		}
		if !notParked(err) {
			return
		}
	}
	x.finish(run, e)
}

// linkWithin limits how long reading traces may delay a join's handler.
const linkWithin = time.Second

// linkJoin links a join's span to the fan-out and its first children. Only joins have a parent but no trace context.
func (x *executor) linkJoin(run *Run) {
	c := run.Claimed
	if !run.span.Recorded() || c.ParentID == nil || c.Trace != "" {
		return
	}
	ctx, cancel := context.WithTimeout(run.Ctx, linkWithin)
	defer cancel()
	found, err := view.TracesOfFanOut(ctx, x.Commands, c.PipelineID, *c.ParentID, telemetry.MaxLinks)
	if err != nil {
		_ = x.DBError(err) // the trace is incomplete, but the job can run
	}
	run.span.Link(found...)
}
