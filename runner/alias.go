package runner

import (
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/job"
)

// Aliases for types of package job, so that most programs need only one import.
type (
	// Args is the input of a job: a type that is encoded as JSON and names the job's kind.
	Args = job.Args
	// Backoff computes the delay before the next attempt; see [Retry].
	Backoff = job.Backoff
	// State is the state of a job.
	State = job.State
	// OutcomeStatus is the outcome of a finished job.
	OutcomeStatus = job.OutcomeStatus
	// End describes how a job finished. It is passed to Options.OnEnd.
	End = job.End
	// EndError is the error that [Result] returns for a job that failed or was cancelled.
	EndError = job.EndError
	// Branch is the outcome of one branch of a fan-out.
	Branch = job.Branch
	// Filter selects jobs.
	Filter = job.Filter
	// UniqueWhile is the period during which a unique key excludes other jobs; see [Unique].
	UniqueWhile = job.UniqueWhile
	// Submission is a job before it is submitted; see [Describe] and [EnqueueMiddleware]. Its arguments are not redacted, so they can
	// include secrets.
	Submission = job.Submission
	// JobRow is a job as returned by [Runner.GetJob].
	JobRow = job.JobRow
)

// Job states.
const (
	StateAwaitingApproval = job.AwaitingApproval
	StatePending          = job.Pending
	StateRunning          = job.Running
	StateWaiting          = job.Waiting
	StateSucceeded        = job.Succeeded
	StateFailed           = job.Failed
	StateCancelled        = job.Cancelled
)

// Job outcomes.
const (
	OutcomeOK      = job.OK
	OutcomeWarning = job.Warning
	OutcomeError   = job.Error
)

// Errors that callers can test for with [errors.Is].
var (
	ErrLeaseLost       = job.ErrLeaseLost
	ErrGone            = job.ErrGone
	ErrNotFound        = job.ErrNotFound
	ErrAlreadyTerminal = job.ErrAlreadyTerminal
	ErrOutcomeUnknown  = job.ErrOutcomeUnknown

	ErrNotAwaitingApproval = job.ErrNotAwaitingApproval
	ErrOwnSubmission       = job.ErrOwnSubmission
	ErrConflict            = job.ErrConflict
	ErrNotQueued           = job.ErrNotQueued
	ErrNotRunning          = job.ErrNotRunning
	ErrNoAnswer            = job.ErrNoAnswer
	ErrNotFailed           = job.ErrNotFailed
	ErrStillEnding         = job.ErrStillEnding
	ErrPruned              = job.ErrPruned
	ErrKeyHeld             = job.ErrKeyHeld
	ErrNotTerminal         = job.ErrNotTerminal
	ErrPartOfPipeline      = job.ErrPartOfPipeline

	ErrUnknownKind = job.ErrUnknownKind
	ErrUnknownLane = job.ErrUnknownLane
	ErrInvalidArgs = job.ErrInvalidArgs
	ErrTooLarge    = job.ErrTooLarge
	ErrKeyReused   = job.ErrKeyReused
	ErrInvalid     = job.ErrInvalid
	ErrWrongToken  = job.ErrWrongToken

	ErrInvalidSetting = job.ErrInvalidSetting
	ErrKindInTwoLanes = job.ErrKindInTwoLanes
	ErrLaneNotEmpty   = job.ErrLaneNotEmpty
	ErrUnknownPod     = job.ErrUnknownPod
	ErrNoEngine       = job.ErrNoEngine

	ErrUnknownSchedule = job.ErrUnknownSchedule
	ErrInvalidSchedule = job.ErrInvalidSchedule
)

// Cancellation causes for a handler's context; see [context.Cause].
var (
	ErrCancelled      = job.ErrCancelled
	ErrForceCancelled = job.ErrForceCancelled
	ErrTimeout        = job.ErrTimeout
	ErrInactive       = job.ErrInactive
	ErrDeadline       = job.ErrDeadline
	ErrShutdown       = job.ErrShutdown
)

// ErrNoDatabase is returned by every operation that needs a database when the program has none, as in a remote worker.
var ErrNoDatabase = engine.ErrNoDatabase

// Permanent marks err as final: the job is not retried, even if it has attempts left. Permanent(nil) returns nil.
func Permanent(err error) error { return job.Permanent(err) }

// IsPermanent reports whether err was marked with [Permanent].
func IsPermanent(err error) bool { return job.WishOf(err).Permanent }

// IsCancelled reports whether an operator cancelled or stopped the job. err can be any error or the cancellation cause of a handler's
// context.
func IsCancelled(err error) bool {
	return errors.Is(err, ErrCancelled) || errors.Is(err, ErrForceCancelled)
}

// Code attaches an error code, such as card_declined, to err. The code is stored with the failed job, and job lists can be filtered by it. A
// code has at most 64 bytes of A-Z a-z 0-9 _ - . : and /; any other character is stored as _. An error that has a Code() string method does
// not need Code. Code(code, nil) returns nil.
func Code(code string, err error) error { return job.Code(code, err) }

// Retryable requests another attempt. [Retry] and [MaxAttempts] limit it. If neither is set, an attempt that fails with this error is
// repeated until the tenth attempt, or until Options.MaxAttempts if that is higher. Other errors keep to Options.MaxAttempts.
// Retryable(nil) returns nil.
func Retryable(err error) error { return job.Retryable(err) }

// RetryAfter is like [Retryable], with d as the delay before the next attempt. A negative d counts as 0. RetryAfter(d, nil)
// returns nil.
//
// If a service has answered "too many requests", other jobs should wait as well: with [ForLane], no job of the same lane starts for d, on any pod, and
// with [ForKey] no job of the same [Key] in that lane. Pods that are about to start a job at that moment may still do so.
func RetryAfter(d time.Duration, err error, hold ...job.Hold) error {
	return job.RetryAfter(d, err, hold...)
}

// The holds of [RetryAfter].
const (
	ForLane = job.ForLane
	ForKey  = job.ForKey
)
