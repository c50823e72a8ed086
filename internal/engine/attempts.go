package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// because wraps a handler's error with the cancellation cause of its context, unless the error already includes the cause.
func because(cause, err error) error {
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// retryableAttempts is the maximum number of attempts if the error asks for a retry and neither the job nor its kind sets a limit.
const retryableAttempts = 10

// Attempts holds a job's attempt number and attempt limit.
type Attempts struct {
	This    int  // number of the current attempt, starting at 1
	Max     int  // maximum number of attempts that may fail with a handler error
	Default bool // neither the job nor its kind sets Max
}

func (x *executor) attempts(run *Run) Attempts {
	return Attempts{This: run.Claimed.Attempt, Max: run.MaxAttempts, Default: run.Claimed.MaxAttempts == nil && run.handler.MaxAttempts == 0}
}

// Failure describes the consequences of a handler's error for the job.
type Failure struct {
	Reason job.Reason
	Err    error          // includes the cause of the handler's context
	Again  bool           // the job gets another attempt
	After  *time.Duration // the delay that the error requests, or nil for the kind's backoff
	Hold   []job.Hold     // which other jobs wait as long as After

	exhausted bool
}

// HandedBack returns why a job must be handed back after its handler returned an error, or an empty string if it must not be. The cause
// argument is the cancellation cause of the handler's context. A job is handed back if the handler was not to blame for the error. Even
// after the lease has lapsed, this process can hand back the claim as long as no pod has recovered the job.
func HandedBack(cause error) string {
	switch {
	case errors.Is(cause, job.ErrLeaseLost):
		return "the pod lost its database connection"
	case errors.Is(cause, job.ErrShutdown):
		return "the pod is shutting down"
	}
	return ""
}

// Judge decides whether a job whose handler returned an error fails or gets another attempt. The cause argument is the cancellation cause
// of the handler's context, or nil if the context was not cancelled.
func Judge(err, cause error, attempts Attempts) Failure {
	f := Failure{Reason: job.ReasonError, Err: err}
	switch {
	case errors.Is(cause, job.ErrCancelled), errors.Is(cause, job.ErrForceCancelled):
		f.Reason = job.ReasonCancelled
	case errors.Is(cause, job.ErrTimeout):
		f.Reason = job.ReasonTimeout
	case errors.Is(cause, job.ErrInactive):
		f.Reason, f.Err = job.ReasonInactive, because(cause, err)
	case errors.Is(cause, job.ErrDeadline):
		f.Reason, f.Err = job.ReasonDeadline, job.Permanent(because(cause, err))
	case errors.Is(err, job.ErrInvalidArgs):
		f.Reason = job.ReasonInvalidArgs
	case errors.Is(err, job.ErrTooLarge):
		f.Reason = job.ReasonResultTooLarge
	}
	wish, limit := job.WishOf(f.Err), attempts.Max
	if wish.Retry && attempts.Default {
		limit = max(limit, retryableAttempts)
	}
	f.After, f.Hold = wish.After, wish.Hold
	f.Again = f.Reason != job.ReasonCancelled && !wish.Permanent && attempts.This < limit
	f.exhausted = !f.Again && f.Reason == job.ReasonError && limit > 1 && !wish.Permanent
	return f
}

// FinalOutcome returns the final outcome of a job that gets no further attempt. It truncates the error text for storage.
func (f Failure) FinalOutcome() store.Ending {
	e := store.Ending{State: job.Failed, Outcome: job.Error, Reason: f.Reason, Error: job.Storable(f.Err.Error(), job.MaxErrorBytes)}
	if f.Reason == job.ReasonCancelled {
		e.State = job.Cancelled
		return e
	}
	e.Class, e.Code = classed(f.Reason, f.Err)
	if f.exhausted {
		e.Reason = job.ReasonAttemptsExhausted
	}
	return e
}

// maxAttempts returns the maximum number of attempts that may fail with a handler error. A limit in the submission overrides the kind's
// limit, which overrides the default.
func (x *executor) maxAttempts(c *store.Claimed, k *Handler) int {
	switch {
	case c.MaxAttempts != nil:
		return *c.MaxAttempts
	case k.MaxAttempts > 0:
		return k.MaxAttempts
	}
	return x.Opts.MaxAttempts
}

// classed returns the error class and the error code of a failed run.
func classed(reason job.Reason, err error) (job.ErrorClass, string) {
	class, code := work.ErrorOf(err)
	own := code
	if class == job.ClassDatabase {
		own = "" // the SQLSTATE is only a symptom, for example of a timeout that cancelled the statement (57014)
	}
	switch reason {
	case job.ReasonTimeout:
		return job.ClassTimeout, own
	case job.ReasonInactive:
		return job.ClassInactive, own
	case job.ReasonDeadline:
		return job.ClassDeadline, own
	case job.ReasonInvalidArgs:
		return job.ClassInvalidArgs, own
	case job.ReasonResultTooLarge, job.ReasonUnstorable:
		return job.ClassUnstorable, own
	}
	return class, code
}
