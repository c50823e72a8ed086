package job

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors that callers act on.
var (
	// ErrLeaseLost says that a job has been given to another claim, or has ended: nothing was written.
	ErrLeaseLost = errors.New("lease lost: the job has been given to another claim or has ended")
	// ErrGone says that a running job has been deleted: nothing was written. It is an [ErrLeaseLost] too.
	ErrGone error = goneError{}
	// ErrNotFound says that there is no such job.
	ErrNotFound = errors.New("no such job")
	// ErrAlreadyTerminal says that the job has ended before the command came.
	ErrAlreadyTerminal = errors.New("the job has already ended")
	// ErrNotAwaitingApproval says that there is nothing to approve: the job was approved before, never needed it, or has
	// ended.
	ErrNotAwaitingApproval = errors.New("the job does not await approval")
	// ErrOutcomeUnknown says that the connection was lost while committing and the database could not be asked what
	// came of it. Submit again with the same idempotency key to learn.
	ErrOutcomeUnknown = errors.New("outcome unknown: the connection was lost during the commit")
	// ErrUnknownKind says that no handler of the kind is registered and the caller did not say that it is foreign.
	ErrUnknownKind = errors.New("unknown kind")
	// ErrUnknownLane says that the lanes table has no such lane.
	ErrUnknownLane = errors.New("unknown lane")
	// ErrInvalidArgs says that arguments do not encode, do not decode, or hold text PostgreSQL cannot store.
	ErrInvalidArgs = errors.New("invalid args")
	// ErrTooLarge says that something exceeds its limit.
	ErrTooLarge = errors.New("too large")
	// ErrKeyReused says that an idempotency key was used before for another submission.
	ErrKeyReused = errors.New("idempotency key was used for a different submission")
	// ErrNotQueued says that a job's priority cannot be changed, because it runs.
	ErrNotQueued = errors.New("the job is not queued: it is running")
	// ErrNotFailed says that a job or pipeline that is to be retried has neither failed nor been cancelled.
	ErrNotFailed = errors.New("only failed or cancelled jobs can be retried")
	// ErrStillEnding says that jobs beside one that is to be retried have not ended yet: they are being cancelled, or the job that
	// waits for them is about to end.
	ErrStillEnding = errors.New("related jobs have not ended yet: try again shortly")
	// ErrPruned says that a job or pipeline cannot be retried, because its data was erased or jobs that it needs are no longer kept.
	ErrPruned = errors.New("removed by retention")
	// ErrKeyHeld says that a job cannot be retried, because another one holds its unique key.
	ErrKeyHeld = errors.New("another job holds its unique key")
	// ErrNotTerminal says that a job cannot be deleted, because it or another of its pipeline has not ended.
	ErrNotTerminal = errors.New("the job has not ended")
	// ErrPartOfPipeline says that a job cannot be deleted by itself, because it is a step of a pipeline: its first job is deleted with
	// all of it.
	ErrPartOfPipeline = errors.New("the job is part of a pipeline")
	// ErrWrongToken says that a part of a job was to be completed with a token that is not the job's.
	ErrWrongToken = errors.New("wrong token for this job")
	// ErrInvalid says that an option of a submission is out of range.
	ErrInvalid = errors.New("invalid request")
)

// Causes of a handler's context: [context.Cause] returns one of them.
var (
	ErrCancelled = errors.New("cancelled by an operator")
	ErrStopped   = errors.New("stopped by an operator")
	ErrTimeout   = errors.New("the kind's timeout has expired")
	ErrStale     = errors.New("the handler gave no sign of life for too long")
	ErrDeadline  = errors.New("the job exceeded its maximum age")
	ErrShutdown  = errors.New("the pod is shutting down")
)

type goneError struct{}

func (goneError) Error() string        { return "gone: the job has been deleted" }
func (goneError) Is(target error) bool { return target == ErrLeaseLost }

// EndError says that a job which somebody waited for did not succeed.
type EndError struct {
	ID      int64
	State   State      // failed or cancelled
	Reason  Reason     // why
	Message string     // the handler's error, where there was one
	Class   ErrorClass // of a job that failed
	Code    string     // an SQLSTATE, or the handler's own; empty: none
}

// Error is one line, whatever the handler said.
func (e *EndError) Error() string {
	text := fmt.Sprintf("job %d ended %s (%s)", e.ID, e.State, e.Reason)
	if first, _, _ := strings.Cut(e.Message, "\n"); first != "" {
		text += ": " + first
	}
	return text
}

// Permanent marks err as final: no attempt that is left is used. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, permanent: true}
}

// Retryable marks err as worth another attempt, after the kind's back-off, even for a kind without a retry policy, as
// long as the job's attempts last: its own or its kind's limit, or at least ten where neither sets one. Retryable(nil) is nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, retry: true}
}

// RetryAfter is [Retryable] with a wait of its own. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, retry: true, after: &d}
}

type verdict struct {
	err       error
	permanent bool
	retry     bool
	after     *time.Duration
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// Wish is what a handler's error asks for.
type Wish struct {
	Permanent bool
	Retry     bool
	After     *time.Duration // nil: the kind's back-off
}

// WishOf reads what the outermost of [Permanent], [Retryable] and [RetryAfter] around err asks for.
func WishOf(err error) Wish {
	if v, ok := errors.AsType[*verdict](err); ok {
		return Wish{Permanent: v.permanent, Retry: v.retry, After: v.after}
	}
	return Wish{}
}
