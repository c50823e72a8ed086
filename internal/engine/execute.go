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
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/pool"
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
	workers  *pool.Pool[*Run]
	finisher *finisher
	leases   *leaseTx
	passed   atomic.Int64 // completions in progress whose slots were already passed on
}

// NewRun creates the run of a claimed job and adds it to Runs. It returns nil if the engine has stopped.
func (x *executor) NewRun(c store.Claimed, boot string) *Run {
	k := x.Kinds[c.Kind]
	one := x.Prepare(c, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: boot})
	one.handler, one.MaxAttempts = k, x.maxAttempts(&c, k)
	one.Ctx, one.span = x.Tracing.StartRun(context.Background(), &one.Claimed) // if the engine has stopped, the span is never ended and is therefore never exported
	one.Ctx, one.cancel = context.WithCancelCause(one.Ctx)
	if k.Timeout > 0 {
		one.Ctx, one.done = context.WithTimeoutCause(one.Ctx, k.Timeout, job.ErrTimeout)
	}
	if !x.Runs.add(one) {
		one.done()
		return nil
	}
	// Add the run before checking the lease. If the lease is lost concurrently, either the loss finds the run in Runs or the check below
	// detects the loss.
	switch {
	case x.Lease.ID() != boot:
		one.lose(job.ErrLeaseLost)
	case !x.Lease.Trusted() && !k.KeepRunning:
		one.cancel(job.ErrLeaseLost)
	}
	return one
}

// Prepare returns a run that is not added to Runs. It has no handler and no context yet, but it can already make the job's writes.
func (x *executor) Prepare(claimed store.Claimed, lease job.Lease) *Run {
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
	one := x.NewRun(startedOnInsert(n, now), boot)
	if one == nil {
		x.Unknown.Raise() // the engine is stopping: the table assigns the job to this pod, but the job is not in Runs
		return false
	}
	one.handed = now
	x.workers.Give(one)
	return true
}

// runClaim runs a claimed job. If its outcome was written in a separate transaction, it then runs the next step. After a group commit, the
// next step runs on a new goroutine.
func (x *executor) runClaim(one *Run, goroutine uint64) {
	for one != nil {
		one = x.runHandler(one, goroutine)
	}
}

// runHandler calls the handler and settles its run. It returns the next step if that has already started in this process.
func (x *executor) runHandler(one *Run, goroutine uint64) (next *Run) {
	one.goroutine.Store(goroutine)
	unwatch := context.AfterFunc(one.Ctx, func() { x.watchStuck(one) })
	_ = failpoint.Hit(failpoint.Launch)
	x.startWatchdog(one)
	x.linkJoin(one)
	began := time.Now()
	x.Count.Started(one.Claimed.Path).Inc()
	if !one.handed.IsZero() {
		x.Metrics.HandoffSeconds.Observe(began.Sub(one.handed).Seconds())
	}
	var outcome *work.Outcome
	err := guard.ErrExited // kept unless the handler returns or panics; runtime.Goexit ends this goroutine after its deferred calls have run
	defer func() {
		one.goroutine.Store(0)
		unwatch()
		one.watchdog.Stop()
		_ = failpoint.Hit(failpoint.Handled)
		took := time.Since(began)
		one.took.Store(max(int64(took), 1))
		one.handler.RunSeconds(took.Seconds())
		x.noteRun(one.Claimed.Kind, took)
		next = x.settleRun(one, outcome, err)
	}()
	defer guard.Recover(&err)
	o, failed := one.handler.Run(one.Ctx, &one.Job)
	if failed != nil {
		// Read the error once at this point, where a panic in its methods, for example on a nil pointer, is attributed to the handler.
		work.ReadError(failed)
	}
	outcome, err = o, failed
	return nil
}

// noteRun updates the moving average of a kind's run time, which covers roughly the last eight runs. The initial average is high, so a kind
// counts as short only after about forty short runs.
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

// settleRun writes the outcome of a run, unless watchStuck has already written it. It returns the next step if this process already owns
// it, or the run that took over the slot. If the outcome is written by group commit, afterFlush continues from there. Because the handler
// has returned, watchStuck must not blame it for the time that writing its progress and events takes.
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

// close closes a settled run, and passes its slot to the next step or releases it. It reports whether the slot is free.
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

// conclude turns a handler's return into an outcome, and writes or queues the outcome. It returns the next step if this process already
// owns it, or the run that took over the slot of a queued outcome. underWay reports whether the outcome was queued.
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

// concludeWritten continues after an outcome was written together with the handler's writes, or after that write failed. It returns the
// next step if that has already started in this process.
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

// afterFlush continues after completions for which no caller is waiting. It runs on the flusher's goroutine, so work that may take time
// gets a separate goroutine. It frees all slots together so that a single claim can fill them.
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

// goOn closes the run of a completion, even if the completion could not be written, and starts the next step. It reports whether the slot
// has become free.
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
