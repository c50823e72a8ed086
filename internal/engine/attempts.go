package engine

import (
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// because adds the cause of the context's end to a handler's error that lacks it.
func because(cause, err error) error {
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// retryableAttempts is the limit of a job whose error asks for a retry where neither it nor its kind sets a limit.
const retryableAttempts = 10

// attemptsOf returns the limit of attempts for a job that failed with an error, and the wishes of the error.
func (x *executor) attemptsOf(one *Run, err error) (int, job.Wish) {
	wish := job.WishOf(err)
	if wish.Retry && one.Claimed.MaxAttempts == nil && one.handler.MaxAttempts == 0 {
		return max(one.MaxAttempts, retryableAttempts), wish
	}
	return one.MaxAttempts, wish
}

// maxAttempts is how many tries of a job may end in its handler's error: what was submitted with it, or what its kind says, or the default.
func (x *executor) maxAttempts(c *store.Claimed, k *Handler) int {
	switch {
	case c.MaxAttempts != nil:
		return *c.MaxAttempts
	case k.MaxAttempts > 0:
		return k.MaxAttempts
	}
	return x.Opts.MaxAttempts
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
