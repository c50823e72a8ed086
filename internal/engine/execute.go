package engine

import (
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/tracing"
	"github.com/trapeze-run/trapeze/internal/work"

	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// newRun prepares a claim for its handler. The claim is in runs from here on: nil when the runner has stopped.
func (r *Engine) NewRun(c store.Claimed, boot string) *Run {
	k := r.Kinds[c.Kind]
	one := r.Prepare(c, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: boot})
	one.kind = k
	one.Ctx, one.span = r.Tracing.StartRun(context.Background(), &one.Claimed) // never ended, so never seen, when the runner has stopped
	one.Ctx, one.cancel = context.WithCancelCause(one.Ctx)
	if k.Timeout > 0 {
		one.Ctx, one.done = context.WithTimeoutCause(one.Ctx, k.Timeout, job.ErrTimeout)
	}
	if !r.Runs.add(one) {
		one.done()
		return nil
	}
	// First in, then looked at: whoever loses the lease meanwhile finds it in runs, or it finds the loss here.
	switch {
	case r.Lease.id() != boot:
		one.lose(job.ErrLeaseLost)
	case !r.Lease.Trusted() && !k.KeepRunning:
		one.cancel(job.ErrLeaseLost)
	}
	return one
}

// launchBorn has a job performed that an insert of ours made running. The slot of its lane is reserved.
func (r *Engine) launchBorn(boot string, n store.NewJob) bool {
	now := time.Now()
	one := r.NewRun(born(n, now), boot)
	if one == nil {
		r.Doubt.Raise() // stopping: the row is ours in the table and unknown here
		return false
	}
	one.handed = now
	r.workers.Give(one)
	return true
}

// work performs a claim, and the next step as well when its end was written in a transaction of its own: after a group commit the next
// step gets a goroutine of its own.
func (r *Engine) work(one *Run) {
	for one != nil {
		one = r.perform(one)
	}
}

// perform calls the handler and settles what came of it. It returns the next step when that is ours already.
func (r *Engine) perform(one *Run) (next *Run) {
	unwatch := context.AfterFunc(one.Ctx, func() { r.watchStuck(one) })
	_ = failpoint.Hit(failpoint.Launch)
	one.startWatchdog()
	r.linkJoin(one)
	began := time.Now()
	r.Count.Started(one.Claimed.Path).Inc()
	if !one.handed.IsZero() {
		r.Metrics.HandoffSeconds.Observe(began.Sub(one.handed).Seconds())
	}
	var outcome *work.Outcome
	err := guard.ErrExited // unless the handler returns or panics; runtime.Goexit ends this goroutine after its deferred calls
	defer func() {
		unwatch()
		one.watchdog.Stop()
		_ = failpoint.Hit(failpoint.Handled)
		one.kind.RunSeconds.Observe(time.Since(began).Seconds())
		next = r.settle(one, outcome, err)
	}()
	defer guard.Recover(&err)
	o, failed := one.kind.Run(one.Ctx, &one.Job)
	if failed != nil {
		// Read it once here, where a panic of its methods, such as those of a nil pointer, is the handler's.
		work.ReadError(failed)
	}
	outcome, err = o, failed
	return nil
}

// settle writes the end of a claim, unless it was written without the handler. It returns the next step when that is ours
// already; after an end by group commit landed goes on. The handler has returned: however long its progress and its events take to be
// written, watchStuck must not blame it.
func (r *Engine) settle(one *Run, o *work.Outcome, err error) (next *Run) {
	inTime := one.Settled.CompareAndSwap(false, true)
	one.progress.Close()
	one.Events.Close()
	if inTime {
		var underWay bool
		if next, underWay = r.conclude(one, o, err); underWay {
			return nil
		}
	} else {
		r.Metrics.Stuck.Dec()
		r.Log.WarnContext(one.Ctx, "stuck handler returned", one.attrs()...)
	}
	if r.close(one, next) {
		r.slotFree(one.Claimed.Lane)
	}
	return next
}

// close ends a claim that is settled, and moves its slot to the next step or releases it. It reports whether it is free.
func (r *Engine) close(one *Run, next *Run) (free bool) {
	close(one.Ended)
	one.span.End()
	one.done()
	one.cancel(nil)
	r.Waiters.Seen(one.Lease.JobID)
	r.Runs.remove(one)
	if next == nil {
		r.Lanes.Release(one.Claimed.Lane, 1)
	}
	if one.Claimed.Isolated {
		r.Wake()
	}
	return next == nil
}

// staleAfter is for how long the handler of a run may give no sign of life; 0 is as long as it likes.
func (r *Engine) staleAfter(one *Run) time.Duration {
	if one.kind.StaleAfter != nil {
		return *one.kind.StaleAfter
	}
	if after, set := r.Lanes.StaleAfter(one.Claimed.Lane); set {
		return after
	}
	return r.Opts.StaleAfter
}

// startWatchdog watches over the signs of life of a run from now on, if its kind or its lane sets a limit.
func (one *Run) startWatchdog() {
	after := one.r.staleAfter(one)
	one.watchdog.Start(one.cancel, after)
	if now := one.r.staleAfter(one); now != after { // its lane says otherwise since, and may have said it before the watch began
		one.watchdog.Limit(now)
	}
}

// linkWithin bounds the read of what a join is to be linked to: its handler waits for it.
const linkWithin = time.Second

// linkJoin links the span of a join to the fan-out and the first of its children. A join is the one job with a parent that has no context
// of its own.
func (r *Engine) linkJoin(one *Run) {
	c := &one.Claimed
	if !one.span.Recorded() || c.ParentID == nil || c.Trace != "" {
		return
	}
	ctx, cancel := context.WithTimeout(one.Ctx, linkWithin)
	defer cancel()
	found, err := view.TracesOfFanOut(ctx, r.Commands, c.PipelineID, *c.ParentID, tracing.MaxLinks)
	if err != nil {
		_ = r.DBError(err) // the trace is poorer, the job is not
	}
	one.span.Link(found...)
}

// watchStuck runs when a claim's context has ended: it gives the handler a while to return, then writes the end without
// it. The handler keeps its slot until it returns, for it still uses this process.
func (r *Engine) watchStuck(one *Run) {
	timer := time.NewTimer(r.Opts.StuckAfter)
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
	r.Metrics.Stuck.Inc()
	r.Log.ErrorContext(one.Ctx, "handler ignores the end of its context", append(one.attrs(), telemetry.Cause, cause, telemetry.Goroutines, stacks())...)
	one.Events.Close()
	r.conclude(one, nil, fmt.Errorf("handler ignored the end of its context for %s: %w", r.Opts.StuckAfter, cause))
}

func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}

// conclude decides what a handler's return means and writes it, or has it written: then the end is under way. It returns
// the next step when that is ours already.
func (r *Engine) conclude(one *Run, o *work.Outcome, err error) (next *Run, underWay bool) {
	if o == nil {
		o = &work.Outcome{Quality: job.OK}
	}
	cause := context.Cause(one.Ctx)
	if err, ok := errors.AsType[*Release](err); ok {
		r.release(one, err)
		return nil, false
	}
	if one.IsLost() {
		failure := ""
		if err != nil {
			failure = err.Error()
		}
		r.stale(one, failure, cause)
		return nil, false
	}
	if err == nil && o.Later != nil && o.InTx != nil {
		err = job.Permanent(errors.New("RetryLater ends no job, so it has no commit for InTx to be in: use Job.Tx"))
	}
	if err == nil && o.Later != nil && !errors.Is(cause, job.ErrCancelled) {
		one.span.Event("job.retry_later")
		r.putOff(one, *o.Later, job.Storable(o.Why, 500))
		return nil, false
	}
	if err != nil {
		return r.concludeError(one, err, cause), false
	}
	if o.Fan != nil {
		return r.fanOut(one, o), false
	}
	ending, step, err := r.succeeded(one, o)
	if err != nil {
		return r.concludeError(one, job.Permanent(err), cause), false
	}
	if o.InTx != nil {
		return r.finishInTx(one, o, ending, step), false
	}
	r.flusher.put(r.ending(one, ending, step))
	return nil, true
}

// concludeError decides between handing back, another attempt, and failure.
func (r *Engine) concludeError(one *Run, err, cause error) *Run {
	reason := job.ReasonError
	switch {
	case errors.Is(cause, job.ErrLeaseLost):
		// Not the handler's fault. When the lapse was not recovered the claim is still ours to give back.
		one.span.Event("job.handed_back")
		r.handBack(one, "the pod lost touch with the database")
		return nil
	case errors.Is(cause, job.ErrShutdown):
		one.span.Event("job.handed_back")
		r.handBack(one, "the pod is shutting down")
		return nil
	case errors.Is(cause, job.ErrCancelled), errors.Is(cause, job.ErrStopped):
		reason = job.ReasonCancelled
	case errors.Is(cause, job.ErrTimeout):
		reason = job.ReasonTimeout
	case errors.Is(cause, job.ErrStale):
		reason = job.ReasonStale
		err = because(cause, err)
	case errors.Is(cause, job.ErrDeadline):
		reason = job.ReasonDeadline
		err = job.Permanent(because(cause, err))
	case errors.Is(err, job.ErrInvalidArgs):
		reason = job.ReasonInvalidArgs
	case errors.Is(err, job.ErrTooLarge):
		reason = job.ReasonResultTooLarge
	}
	one.span.Error(reason, err)
	message := job.Storable(err.Error(), job.MaxErrorBytes)
	class, code := classed(reason, err)
	limit, wish := r.attemptsOf(one, err)
	if reason != job.ReasonCancelled && !wish.Permanent && one.Claimed.Attempt < limit {
		wait := one.kind.Backoff.Random(one.Claimed.Attempt)
		if wish.After != nil {
			wait = *wish.After
		}
		r.Log.WarnContext(one.Ctx, "job failed and will be retried", append(one.attrs(), telemetry.Wait, wait, telemetry.ErrorClass, class, telemetry.ErrorCode, code,
			telemetry.Err, message)...)
		if r.park(one, wait, store.Retry{Message: message, Class: class, Code: code}) {
			one.span.Event("job.retried", attribute.Float64("trapeze.wait_seconds", wait.Seconds()))
			return nil
		}
		// Not parked: its lease is lost, or a cancel was committed, which wins.
	} else if reason == job.ReasonError && limit > 1 && !wish.Permanent {
		reason = job.ReasonAttemptsExhausted
	}
	e := store.Ending{State: job.Failed, Outcome: job.Error, Reason: reason, Error: message, Class: class, Code: code}
	if reason == job.ReasonCancelled {
		e.State, e.Class, e.Code = job.Cancelled, "", ""
	}
	return r.finish(one, e, nil)
}

// because adds to a handler's error why its context ended, which the error itself need not say.
func because(cause, err error) error {
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// retryableAttempts is the limit of a job whose error asks for a retry where neither it nor its kind sets a limit.
const retryableAttempts = 10

func (r *Engine) attemptsOf(one *Run, err error) (int, job.Wish) {
	wish := job.WishOf(err)
	switch {
	case one.Claimed.MaxAttempts != nil:
		return *one.Claimed.MaxAttempts, wish
	case one.kind.MaxAttempts > 0:
		return one.kind.MaxAttempts, wish
	case wish.Retry && r.Opts.MaxAttempts == 1:
		return retryableAttempts, wish
	}
	return r.Opts.MaxAttempts, wish
}

// classed returns the class and the code of the error with which a run failed for a reason.
func classed(reason job.Reason, err error) (job.ErrorClass, string) {
	class, code := work.ErrorOf(err)
	own := code
	if class == job.ClassDatabase {
		own = "" // an SQLSTATE that another cause led to, such as 57014 of a statement that a timeout cancelled
	}
	switch reason {
	case job.ReasonTimeout:
		return job.ClassTimeout, own
	case job.ReasonStale:
		return job.ClassStale, own
	case job.ReasonDeadline:
		return job.ClassDeadline, own
	case job.ReasonInvalidArgs:
		return job.ClassInvalidArgs, own
	case job.ReasonResultTooLarge, job.ReasonUnstorable:
		return job.ClassUnstorable, own
	}
	return class, code
}

// stale notes that a result was discarded, because its job runs elsewhere, has ended, or was deleted; failure is the handler's error,
// empty when it had succeeded.
func (r *Engine) stale(one *Run, failure string, why error) {
	r.Metrics.StaleWrites.Inc()
	if errors.Is(why, job.ErrGone) {
		one.lose(job.ErrGone)
		one.span.Error("gone", job.ErrGone)
		r.Log.WarnContext(one.Ctx, "result discarded: the job has been deleted", append(one.attrs(), telemetry.Reason, "gone")...)
		return
	}
	one.span.Error("lease_lost", job.ErrLeaseLost)
	what := "succeeded"
	if failure != "" {
		what = job.Storable("failed: "+failure, 200)
	}
	r.Log.WarnContext(one.Ctx, "result discarded: the lease was lost", append(one.attrs(), telemetry.Result, what)...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(one.Ctx), 2*time.Second)
	defer cancel()
	_ = r.Commands.StaleResult(ctx, one.Lease, what) // only a note
}
