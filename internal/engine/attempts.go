package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// because adds the cause with which the context ended to a handler's error that lacks it.
func because(cause, err error) error {
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// retryableAttempts is the limit of a job whose error asks for a retry where neither it nor its kind sets a limit.
const retryableAttempts = 10

// Attempts counts the tries of a job.
type Attempts struct {
	This    int  // the current one, counted from 1
	Max     int  // the number that may end in the handler's error
	Default bool // neither the job nor its kind sets Max
}

// attempts returns the attempts of a run.
func (x *executor) attempts(one *Run) Attempts {
	return Attempts{This: one.Claimed.Attempt, Max: one.MaxAttempts, Default: one.Claimed.MaxAttempts == nil && one.handler.MaxAttempts == 0}
}

// Failure is the consequence of a handler's error for its job.
type Failure struct {
	Reason job.Reason
	Err    error          // with the cause with which its context ended
	Again  bool           // the job gets another attempt
	After  *time.Duration // the wait before it, as the error requests; nil: the kind's backoff

	exhausted bool
}

// HandedBack returns why a job is handed back if its handler returns an error after its context ended with cause; empty: it is not handed
// back. The error is then not the handler's fault. If the lease lapsed and no pod recovered the job, the claim is still ours to hand back.
func HandedBack(cause error) string {
	switch {
	case errors.Is(cause, job.ErrLeaseLost):
		return "the pod lost its database connection"
	case errors.Is(cause, job.ErrShutdown):
		return "the pod is shutting down"
	}
	return ""
}

// Judge decides between another attempt and an end for a job whose handler returned an error. cause is that with which the handler's
// context ended; nil: it has not ended.
func Judge(err, cause error, attempts Attempts) Failure {
	f := Failure{Reason: job.ReasonError, Err: err}
	switch {
	case errors.Is(cause, job.ErrCancelled), errors.Is(cause, job.ErrStopped):
		f.Reason = job.ReasonCancelled
	case errors.Is(cause, job.ErrTimeout):
		f.Reason = job.ReasonTimeout
	case errors.Is(cause, job.ErrStale):
		f.Reason, f.Err = job.ReasonStale, because(cause, err)
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
	f.After = wish.After
	f.Again = f.Reason != job.ReasonCancelled && !wish.Permanent && attempts.This < limit
	f.exhausted = !f.Again && f.Reason == job.ReasonError && limit > 1 && !wish.Permanent
	return f
}

// Ending returns the end of the job if it gets no other attempt, with the text of the error as it is stored.
func (f Failure) Ending() store.Ending {
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

// maxAttempts returns how many tries of a job may end in its handler's error, as set by the submission, the kind or the default.
func (x *executor) maxAttempts(c *store.Claimed, k *Handler) int {
	switch {
	case c.MaxAttempts != nil:
		return *c.MaxAttempts
	case k.MaxAttempts > 0:
		return k.MaxAttempts
	}
	return x.Opts.MaxAttempts
}

// classed returns the class and the code of the error of a failed run.
func classed(reason job.Reason, err error) (job.ErrorClass, string) {
	class, code := work.ErrorOf(err)
	own := code
	if class == job.ClassDatabase {
		own = "" // an SQLSTATE that another cause produced, such as 57014 of a statement that a timeout cancelled
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
