package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/attribute"

	plain "github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// newRun prepares a claim for its handler. The claim is in runs from here on: nil when the runner has stopped.
func (r *engine) newRun(c store.Claimed, boot string) *run {
	k := r.kinds[c.Kind]
	one := r.prepare(c, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: boot})
	one.kind = k
	one.ctx, one.span = r.tracing.run(context.Background(), &one.Claimed) // never ended, so never seen, when the runner has stopped
	one.ctx, one.cancel = context.WithCancelCause(one.ctx)
	if k.timeout > 0 {
		one.ctx, one.done = context.WithTimeoutCause(one.ctx, k.timeout, job.ErrTimeout)
	}
	if !r.runs.add(one) {
		one.done()
		return nil
	}
	// First in, then looked at: whoever loses the lease meanwhile finds it in runs, or it finds the loss here.
	switch {
	case r.lease.id() != boot:
		one.lose(job.ErrLeaseLost)
	case !r.lease.trusted() && !k.keepRunning:
		one.cancel(job.ErrLeaseLost)
	}
	return one
}

// launchBorn has a job performed that an insert of ours made running. The slot of its lane is reserved.
func (r *engine) launchBorn(boot string, n store.NewJob) bool {
	now := time.Now()
	one := r.newRun(born(n, now), boot)
	if one == nil {
		r.doubt.raise() // stopping: the row is ours in the table and unknown here
		return false
	}
	one.handed = now
	r.hands.give(one)
	return true
}

// work performs a claim, and the next step as well when its end was written in a transaction of its own: after a group commit the next
// step gets a goroutine of its own.
func (r *engine) work(one *run) {
	for one != nil {
		one = r.perform(one)
	}
}

// perform calls the handler and settles what came of it. It returns the next step when that is ours already.
func (r *engine) perform(one *run) (next *run) {
	unwatch := context.AfterFunc(one.ctx, func() { r.watchStuck(one) })
	_ = failpoint.Hit(failpoint.Launch)
	one.watchPulse()
	r.traceBranches(one)
	began := time.Now()
	r.count.started(one.Claimed.Path).Inc()
	if !one.handed.IsZero() {
		r.metrics.HandoffSeconds.Observe(began.Sub(one.handed).Seconds())
	}
	var outcome *plain.Outcome
	err := guard.ErrExited // unless the handler returns or panics; runtime.Goexit ends this goroutine after its deferred calls
	defer func() {
		unwatch()
		one.pulse.end()
		_ = failpoint.Hit(failpoint.Handled)
		one.kind.runSeconds.Observe(time.Since(began).Seconds())
		next = r.settle(one, outcome, err)
	}()
	defer guard.Recover(&err)
	o, failed := one.kind.run(one.ctx, &one.Job)
	if failed != nil {
		// Read it once here, where a panic of its methods, such as those of a nil pointer, is the handler's.
		readOnce(failed)
	}
	outcome, err = o, failed
	return nil
}

// settle writes the end of a claim, unless it was written without the handler. It returns the next step when that is ours
// already; after an end by group commit landed goes on. The handler has returned: however long its progress and its events take to be
// written, watchStuck must not blame it.
func (r *engine) settle(one *run, o *plain.Outcome, err error) (next *run) {
	inTime := one.settled.CompareAndSwap(false, true)
	one.progress.Close()
	one.events.Close()
	if inTime {
		var underWay bool
		if next, underWay = r.conclude(one, o, err); underWay {
			return nil
		}
	} else {
		r.metrics.Stuck.Dec()
		r.log.WarnContext(one.ctx, "stuck handler returned", one.attrs()...)
	}
	if r.close(one, next) {
		r.slotFree(one.Claimed.Lane)
	}
	return next
}

// close ends a claim that is settled, and moves its slot to the next step or releases it. It reports whether it is free.
func (r *engine) close(one *run, next *run) (free bool) {
	close(one.ended)
	if one.span != nil {
		one.span.End()
	}
	one.done()
	one.cancel(nil)
	r.waiters.seen(one.Lease.JobID)
	r.runs.remove(one)
	if next == nil {
		r.lanes.Release(one.Claimed.Lane, 1)
	}
	if one.Claimed.Isolated {
		r.wake()
	}
	return next == nil
}

// watchStuck runs when a claim's context has ended: it gives the handler a while to return, then writes the end without
// it. The handler keeps its slot until it returns, for it still uses this process.
func (r *engine) watchStuck(one *run) {
	timer := time.NewTimer(r.opts.StuckAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-one.ended:
		return
	}
	if !one.settled.CompareAndSwap(false, true) {
		return
	}
	cause := context.Cause(one.ctx)
	r.metrics.Stuck.Inc()
	r.log.ErrorContext(one.ctx, "handler ignores the end of its context", append(one.attrs(), telemetry.Cause, cause, telemetry.Goroutines, stacks())...)
	one.events.Close()
	r.conclude(one, nil, fmt.Errorf("handler ignored the end of its context for %s: %w", r.opts.StuckAfter, cause))
}

func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}

// conclude decides what a handler's return means and writes it, or has it written: then the end is under way. It returns
// the next step when that is ours already.
func (r *engine) conclude(one *run, o *plain.Outcome, err error) (next *run, underWay bool) {
	if o == nil {
		o = &plain.Outcome{Quality: job.OK}
	}
	cause := context.Cause(one.ctx)
	if err, ok := errors.AsType[*released](err); ok {
		r.release(one, err)
		return nil, false
	}
	if one.isLost() {
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
		one.traceEvent("job.retry_later")
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
func (r *engine) concludeError(one *run, err, cause error) *run {
	reason := job.ReasonError
	switch {
	case errors.Is(cause, job.ErrLeaseLost):
		// Not the handler's fault. When the lapse was not recovered the claim is still ours to give back.
		one.traceEvent("job.handed_back")
		r.handBack(one, "the pod lost touch with the database")
		return nil
	case errors.Is(cause, job.ErrShutdown):
		one.traceEvent("job.handed_back")
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
	one.traceError(reason, err)
	message := job.Storable(err.Error(), job.MaxErrorBytes)
	class, code := classed(reason, err)
	limit, wish := r.attemptsOf(one, err)
	if reason != job.ReasonCancelled && !wish.Permanent && one.Claimed.Attempt < limit {
		wait := one.kind.backoff.Random(one.Claimed.Attempt)
		if wish.After != nil {
			wait = *wish.After
		}
		r.log.WarnContext(one.ctx, "job failed and will be retried", append(one.attrs(), telemetry.Wait, wait, telemetry.ErrorClass, class, telemetry.ErrorCode, code,
			telemetry.Err, message)...)
		if r.park(one, wait, store.Retry{Message: message, Class: class, Code: code}) {
			one.traceEvent("job.retried", attribute.Float64("trapeze.wait_seconds", wait.Seconds()))
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

func (r *engine) attemptsOf(one *run, err error) (int, job.Wish) {
	wish := job.WishOf(err)
	switch {
	case one.Claimed.MaxAttempts != nil:
		return *one.Claimed.MaxAttempts, wish
	case one.kind.maxAttempts > 0:
		return one.kind.maxAttempts, wish
	case wish.Retry && r.opts.MaxAttempts == 1:
		return retryableAttempts, wish
	}
	return r.opts.MaxAttempts, wish
}

// stale notes that a result was discarded, because its job runs elsewhere, has ended, or was deleted; failure is the handler's error,
// empty when it had succeeded.
func (r *engine) stale(one *run, failure string, why error) {
	r.metrics.StaleWrites.Inc()
	if errors.Is(why, job.ErrGone) {
		one.lose(job.ErrGone)
		one.traceError("gone", job.ErrGone)
		r.log.WarnContext(one.ctx, "result discarded: the job has been deleted", append(one.attrs(), telemetry.Reason, "gone")...)
		return
	}
	one.traceError("lease_lost", job.ErrLeaseLost)
	what := "succeeded"
	if failure != "" {
		what = job.Storable("failed: "+failure, 200)
	}
	r.log.WarnContext(one.ctx, "result discarded: the lease was lost", append(one.attrs(), telemetry.Result, what)...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(one.ctx), 2*time.Second)
	defer cancel()
	_ = r.front.StaleResult(ctx, one.Lease, what) // only a note
}
