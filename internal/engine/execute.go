package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/tracing"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// executor runs the handlers of claimed jobs on a pool of goroutines.
type executor struct {
	*Identity
	workers  *WorkerPool[*Run]
	finisher *finisher
	leases   *leaseTx
	passed   atomic.Int64 // completions in progress whose slots have already been passed on
}

// NewRun creates a run for a claimed job and adds it to Runs. It returns nil if the engine has stopped.
func (x *executor) NewRun(c *store.Claimed, boot string) *Run {
	k := x.Kinds[c.Kind]
	one := x.Prepare(c, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: boot})
	one.handler, one.MaxAttempts = k, x.maxAttempts(c, k)
	one.Ctx, one.span = x.Tracing.StartRun(context.Background(), one.Claimed) // if the engine has stopped, the span is never exported
	ctx, cancel := context.WithCancelCause(one.Ctx)
	one.Ctx, one.cancel = ctx, func(cause error) { cancel(cause); x.watchCancelled(one) }
	if k.Timeout > 0 {
		limited, done := context.WithTimeoutCause(ctx, k.Timeout, job.ErrTimeout)
		unwatch := context.AfterFunc(limited, func() { x.watchCancelled(one) })
		one.Ctx, one.done = limited, func() { unwatch(); done() }
	}
	if !x.Runs.add(one) {
		one.done()
		return nil
	}
	// Add the run before checking the lease. If the lease is lost concurrently, either LoseLease finds the run in Runs or the check below
	// notices the loss.
	switch {
	case x.Lease.ID() != boot:
		one.lose(job.ErrLeaseLost)
	case !x.Lease.Trusted() && !k.KeepRunning:
		one.cancel(job.ErrLeaseLost)
	}
	return one
}

// Prepare returns a run without adding it to Runs. The run has no handler or context yet, but can already make the job's writes.
func (x *executor) Prepare(claimed *store.Claimed, lease job.Lease) *Run {
	both := &struct { // a single allocation
		Run
		writer
	}{}
	one := &both.Run
	one.Job, one.Ended = work.Job{Claimed: claimed, Lease: lease, Pod: x.Opts.Name, Writer: &both.writer}, make(chan struct{})
	one.loss.lost, one.tx.turn = make(chan struct{}), make(chan struct{}, 1)
	one.cancel, one.done = func(error) {}, func() {}
	both.writer = writer{one, x.leases}
	one.Events.Init(x.journal, journaled{one})
	one.progress.Init(x.journal, journaled{one})
	return one
}

// startInserted runs a job that was started on insert. The caller has already reserved a slot in its lane.
func (x *executor) startInserted(boot string, n store.NewJob) bool {
	now := time.Now()
	one := x.NewRun(startedOnInsert(n, x.Clock.Now()), boot)
	if one == nil {
		x.Unknown.Raise() // the engine is stopping: the job belongs to this pod in the table, but is not in Runs
		return false
	}
	one.handed = now
	x.workers.Give(one)
	return true
}

// runClaim runs a claimed job. If the job's outcome is written in a separate transaction, runClaim also runs the next step. After a group
// commit, the next step runs on another goroutine.
func (x *executor) runClaim(one *Run, goroutine uint64) {
	for one != nil {
		one = x.runHandler(one, goroutine)
	}
}

// runHandler calls the handler and settles its run. It returns the run of the next step if that step has started in this process.
func (x *executor) runHandler(one *Run, goroutine uint64) (next *Run) {
	one.goroutine.Store(goroutine)
	x.watchCancelled(one)
	_ = failpoint.Hit(failpoint.Launch)
	x.startWatchdog(one)
	x.linkJoin(one)
	began := time.Now()
	x.Count.Started(one.Claimed.Path).Inc()
	if !one.handed.IsZero() {
		x.Metrics.HandoffSeconds.Observe(began.Sub(one.handed).Seconds())
	}
	var outcome *work.Outcome
	err := routine.ErrExited // stays set if the handler calls runtime.Goexit, which ends this goroutine after its deferred calls
	defer func() {
		one.goroutine.Store(0)
		one.watchdog.Stop()
		_ = failpoint.Hit(failpoint.Handled)
		took := time.Since(began)
		one.took.Store(max(int64(took), 1))
		one.handler.RunSeconds(took.Seconds())
		x.noteRun(one.Claimed.Kind, took)
		next = x.settleRun(one, outcome, err)
	}()
	defer routine.Recover(&err)
	o, failed := one.handler.Run(one.Ctx, &one.Job)
	if failed != nil {
		// Read the error here, where a panic in its methods (on a nil pointer, for example) is attributed to the handler.
		failed = work.ReadError(failed)
	}
	outcome, err = o, failed
	return nil
}

// noteRun updates the moving average of a kind's run times, which covers roughly the last eight runs. The average starts high, so a kind
// needs about forty short runs to count as short.
func (i *Identity) noteRun(kind string, took time.Duration) {
	if average := i.took[kind]; average != nil {
		before := cmp.Or(average.Load(), int64(slots.AheadFor))
		average.Store(max(before+(int64(took)-before)/8, 1))
	}
}

// observeWait records how long a job has waited for its handler to be called.
func (x *executor) observeWait(c *store.Claimed) {
	if wait, known := waited(c); known {
		x.Metrics.WaitSeconds.WithLabelValues(c.Lane).Observe(wait.Seconds())
	}
}

// slotFree is called when a slot of a lane has become free.
func (x *executor) slotFree(lane string) {
	x.fillSlots()
	x.Identity.slotFree(lane)
}

// settleRun writes a run's outcome, unless watchStuck has already written it. It returns the run of the next step if this process already
// owns that step, or the run that took over the slot. If the outcome is written by group commit, afterFlush takes over. The run is marked
// as settled first, so that watchStuck does not blame the handler for the time it takes to write progress and events.
func (x *executor) settleRun(one *Run, o *work.Outcome, err error) (next *Run) {
	inTime := one.Settled.CompareAndSwap(false, true)
	one.progress.Close()
	one.Events.Close()
	if inTime {
		var underWay bool
		if next, underWay = x.conclude(one, o, err); underWay {
			return next
		}
	} else {
		x.Metrics.Stuck.Dec()
		x.Log.WarnContext(one.Ctx, "stuck handler returned", one.attrs()...)
	}
	if x.close(one, next) {
		x.slotFree(one.Claimed.Lane)
	}
	return next
}

// close closes a settled run and releases its slot, unless the next step or another job takes over the slot. It reports whether the slot is
// free.
func (x *executor) close(one *Run, next *Run) (free bool) {
	close(one.Ended)
	one.span.End()
	one.done()
	one.cancel(nil)
	x.Waiters.Seen(one.Lease.JobID)
	x.Runs.remove(one)
	switch {
	case one.ahead.passed:
		x.passed.Add(-1)
	case next == nil:
		x.Lanes.Release(one.Claimed.Lane, 1)
	}
	if one.Claimed.Isolated {
		x.Wake()
	}
	return next == nil && !one.ahead.passed
}

// conclude determines the outcome from the handler's return values, and writes or queues it. It returns the run of the next step if this
// process already owns that step or, for a queued outcome, the run that took over the slot. The underWay result reports whether the outcome
// was queued.
func (x *executor) conclude(one *Run, o *work.Outcome, err error) (next *Run, underWay bool) {
	if o == nil {
		o = &work.Outcome{Status: job.OK}
	}
	cause := context.Cause(one.Ctx)
	if err, ok := errors.AsType[*NoOutcome](err); ok {
		x.finisher.endWithoutOutcome(one, err)
		return nil, false
	}
	if one.IsLost() {
		failure := ""
		if err != nil {
			failure = err.Error()
		}
		x.finisher.stale(one, failure, cause)
		return nil, false
	}
	if err == nil {
		err = o.Validate()
	}
	if err == nil && o.Snooze != nil && !errors.Is(cause, job.ErrCancelled) {
		one.span.Event("job.retry_later")
		x.finisher.snooze(one, *o.Snooze)
		return nil, false
	}
	if err == nil {
		err = x.finisher.keepUndo(one, o.Undo)
	}
	if err != nil {
		x.concludeError(one, err, cause)
		return nil, false
	}
	switch {
	case o.Fan != nil:
		next, err = x.finisher.fanOut(one, o)
	case len(o.Writes) > 0 && !x.finisher.groups.takes(one.Claimed.Kind, o.Writes):
		next, err = x.finisher.finishInTx(one, o)
	default:
		if next, err = x.finisher.finishSoon(one, o); err == nil {
			return next, true
		}
	}
	return x.concludeWritten(one, next, err, cause), false
}

// concludeWritten continues after an attempt to write an outcome together with the handler's writes. It returns the run of the next step if
// that step has started in this process.
func (x *executor) concludeWritten(one, next *Run, err, cause error) *Run {
	if held, ok := errors.AsType[*heldError](err); ok {
		err, cause = held.err, context.Cause(one.Ctx)
	}
	if err != nil {
		x.concludeError(one, err, cause)
		return nil
	}
	return next
}

// afterFlush continues after completions for which no caller is waiting. It runs on the flusher's goroutine, so it moves work that may take
// time to separate goroutines. It frees all other slots together so that a single claim can fill them.
func (x *executor) afterFlush(ends []*flush) {
	var lanes []string
	for _, w := range ends {
		quick := w.err == nil && w.ended.State == job.Succeeded && (w.next == nil || w.ended.ChildRunning) &&
			!x.Log.Enabled(w.one.Ctx, slog.LevelDebug)
		if !quick {
			go func() {
				if x.goOn(w) {
					x.slotFree(w.one.Claimed.Lane)
				}
			}()
		} else if lane := w.one.Claimed.Lane; x.goOn(w) && !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	for _, lane := range lanes {
		x.slotFree(lane)
	}
}

// goOn closes a completion's run, even if the completion could not be written, and starts the next step. It reports whether the slot has
// become free.
func (x *executor) goOn(w *flush) bool {
	var next *Run
	if len(w.writes) == 0 {
		next = x.finisher.concludeFlush(w)
	} else {
		var err error
		next, err = x.finisher.finishGrouped(w)
		next = x.concludeWritten(w.one, next, err, context.Cause(w.one.Ctx))
	}
	free := x.close(w.one, next)
	if next != nil {
		x.workers.Give(next)
	}
	return free
}

// concludeError decides whether a job is handed back, retried or failed.
func (x *executor) concludeError(one *Run, err, cause error) {
	if why := HandedBack(cause); why != "" {
		one.span.Event("job.handed_back")
		x.finisher.handBack(one, why)
		return
	}
	f := Judge(err, cause, x.attempts(one))
	one.span.Error(f.Reason, f.Err)
	e := f.FinalOutcome()
	if f.Again {
		wait := one.handler.Backoff.Random(one.Claimed.Attempt)
		if f.After != nil {
			wait = *f.After
		}
		x.Log.WarnContext(one.Ctx, "job failed and will be retried", append(one.attrs(), telemetry.Wait, wait, telemetry.ErrorClass, e.Class, telemetry.ErrorCode, e.Code,
			telemetry.Err, e.Error)...)
		err := x.finisher.park(one, wait, store.Retry{Started: one.started(), Message: e.Error, Class: e.Class, Code: e.Code})
		if err == nil {
			one.span.Event("job.retried", attribute.Float64("trapeze.wait_seconds", wait.Seconds()))
			x.Ends.ReportRetry(endOf(one, e, job.Pending))
		}
		if !notParked(err) {
			return
		}
	}
	x.finisher.finish(one, e)
}

// linkWithin limits how long reading traces may delay a join's handler.
const linkWithin = time.Second

// linkJoin links a join's span to the fan-out and its first children. Only joins have a parent but no trace context.
func (x *executor) linkJoin(one *Run) {
	c := one.Claimed
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
