package job

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors that callers can act on.
var (
	// ErrLeaseLost means that another claim now holds the job, or the job has ended. Nothing was written. It is also the cause of a
	// handler's context when its pod can no longer renew the lease.
	ErrLeaseLost = errors.New("lease lost: the job has been given to another claim or has ended")
	// ErrGone means that a running job was deleted. Nothing was written. It also matches [ErrLeaseLost] with errors.Is.
	ErrGone error = goneError{}
	// ErrNotFound means that the job, or the result or other data to read, does not exist.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyTerminal means that the job ended before the command reached it.
	ErrAlreadyTerminal = errors.New("the job has already ended")
	// ErrNotAwaitingApproval means that there is nothing to approve: the job is already approved, never needed approval, or has ended.
	ErrNotAwaitingApproval = errors.New("the job does not await approval")
	// ErrOwnSubmission means that the actor submitted the job, or sent it back to approval with a retry, and Options.FourEyes or the
	// four_eyes of a lane requires another person to approve it.
	ErrOwnSubmission = errors.New("another person must approve the job")
	// ErrConflict means that the job, the group of failures or the schedule changed after the caller read it. Nothing was written.
	ErrConflict = errors.New("changed since you read it")
	// ErrOutcomeUnknown means that the connection was lost during the commit and the outcome could not be read back. To find out whether a
	// job was submitted, submit it again with the same idempotency key.
	ErrOutcomeUnknown = errors.New("outcome unknown: the connection was lost during the commit")
	// ErrUnknownKind means that no handler is registered for the kind and the submission does not allow unregistered kinds.
	ErrUnknownKind = errors.New("unknown kind")
	// ErrUnknownLane means that the lane does not exist.
	ErrUnknownLane = errors.New("unknown lane")
	// ErrInvalidArgs means that the arguments cannot be encoded or decoded, or contain text that PostgreSQL cannot store.
	ErrInvalidArgs = errors.New("invalid args")
	// ErrTooLarge means that a value exceeds its limit.
	ErrTooLarge = errors.New("too large")
	// ErrKeyReused means that the idempotency key was used for a different submission.
	ErrKeyReused = errors.New("idempotency key was used for a different submission")
	// ErrNotQueued means that a job's priority cannot be changed because the job is running. Only its next steps can get another priority.
	ErrNotQueued = errors.New("the job is not queued: it is running")
	// ErrNotRunning means that no pod is running the job, so there is no stack to read.
	ErrNotRunning = errors.New("no pod is running the job")
	// ErrNoAnswer means that the pod that is running the job did not answer. It may be cut off from the database or run an older release, or
	// the job may be on a remote worker whose program does not answer.
	ErrNoAnswer = errors.New("the pod did not answer")
	// ErrNotFailed means that the job or pipeline to retry is neither failed nor cancelled.
	ErrNotFailed = errors.New("only failed or cancelled jobs can be retried")
	// ErrStillEnding means that jobs related to the one being retried have not ended yet. They are still being cancelled, or the job that
	// is waiting for them is about to end.
	ErrStillEnding = errors.New("related jobs have not ended yet: try again shortly")
	// ErrPruned means that a job or pipeline cannot be retried because retention or an erasure has removed data that the retry needs.
	ErrPruned = errors.New("removed by retention or erasure")
	// ErrKeyHeld means that a job cannot be retried because another job holds its unique key.
	ErrKeyHeld = errors.New("another job holds its unique key")
	// ErrNotTerminal means that a job cannot be deleted because it, or another job in its pipeline, has not ended.
	ErrNotTerminal = errors.New("the job has not ended")
	// ErrPartOfPipeline means that a job cannot be deleted on its own because it is a later step of a pipeline. Deleting the first job
	// deletes the whole pipeline.
	ErrPartOfPipeline = errors.New("the job is part of a pipeline")
	// ErrWrongToken means that the token for completing a part does not belong to the job.
	ErrWrongToken = errors.New("wrong token for this job")
	// ErrInvalid means that an option is out of range.
	ErrInvalid = errors.New("invalid request")
)

// Causes with which a handler's context is cancelled. [context.Cause] returns one of these, [ErrLeaseLost] or [ErrGone].
var (
	ErrCancelled      = errors.New("cancelled by an operator")
	ErrForceCancelled = errors.New("force-cancelled by an operator")
	ErrTimeout        = errors.New("the kind's timeout has expired")
	ErrInactive       = errors.New("the handler gave no sign of life for too long")
	ErrDeadline       = errors.New("the job exceeded its maximum age")
	ErrShutdown       = errors.New("the pod is shutting down")
)

type goneError struct{}

func (goneError) Error() string        { return "gone: the job has been deleted" }
func (goneError) Is(target error) bool { return target == ErrLeaseLost }

// EndError means that an awaited job did not succeed.
type EndError struct {
	ID      int64
	State   State      // failed or cancelled
	Reason  Reason     // why the job ended in State
	Message string     // the handler's error; can be empty
	Class   ErrorClass // set if the job failed
	Code    string     // an SQLSTATE or the code that the handler set; empty if there is none
}

// Error returns a single line, which includes only the first line of the handler's error.
func (e *EndError) Error() string {
	text := fmt.Sprintf("job %d ended %s (%s)", e.ID, e.State, e.Reason)
	if first, _, _ := strings.Cut(e.Message, "\n"); first != "" {
		text += ": " + first
	}
	return text
}

// Permanent marks err as final: the job is not retried, even if it has attempts left. Permanent(nil) returns nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &wishError{err: err, permanent: true}
}

// Retryable requests another attempt after the kind's backoff, even for a kind without a retry policy. The attempt limit of the job or its
// kind applies. If neither has one, an attempt that fails with this error is repeated until the tenth attempt, or until the runner's default
// limit if that is higher. Other errors keep to the default limit. Retryable(nil) returns nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &wishError{err: err, retry: true}
}

// RetryAfter is like [Retryable], with d as the delay before the next attempt. A negative d counts as 0. With [ForLane] or [ForKey], other jobs wait as
// well. RetryAfter(d, nil) returns nil.
func RetryAfter(d time.Duration, err error, hold ...Hold) error {
	if err == nil {
		return nil
	}
	d = max(d, 0)
	return &wishError{err: err, retry: true, after: &d, hold: hold}
}

// Hold names the other jobs that wait before the next attempt of a job.
type Hold string

// The holds of [RetryAfter]. Running jobs continue.
const (
	ForLane Hold = "lane" // no job of the job's lane starts
	ForKey  Hold = "key"  // no job of the job's key starts in its lane; without a key, it holds nothing
)

type wishError struct {
	err       error
	permanent bool
	retry     bool
	after     *time.Duration
	hold      []Hold
}

func (v *wishError) Error() string { return v.err.Error() }
func (v *wishError) Unwrap() error { return v.err }

// Wish is the request that a handler made by wrapping its error with [Permanent], [Retryable] or [RetryAfter].
type Wish struct {
	Permanent bool
	Retry     bool
	After     *time.Duration // nil means the kind's backoff
	Hold      []Hold         // which other jobs wait as long as After
}

// WishOf returns the request made by the outermost [Permanent], [Retryable] or [RetryAfter] in err's chain.
func WishOf(err error) Wish {
	if v, ok := errors.AsType[*wishError](err); ok {
		return Wish{Permanent: v.permanent, Retry: v.retry, After: v.after, Hold: v.hold}
	}
	return Wish{}
}
