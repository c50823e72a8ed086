package runner

import (
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The types of package job that users of this package need, so that one import is enough.
type (
	// Args is the input of one kind of job: a type that encodes to JSON and names its kind.
	Args = job.Args
	// Backoff computes the wait before the next attempt; see [Retry].
	Backoff = job.Backoff
	// State is the state of a job.
	State = job.State
	// OutcomeStatus is the outcome of a job that ended.
	OutcomeStatus = job.OutcomeStatus
	// End describes how a job ended; Options.OnEnd receives it.
	End = job.End
	// EndError is the error of [Result] for a job that failed or was cancelled.
	EndError = job.EndError
	// Branch is the outcome of one branch of a fan-out.
	Branch = job.Branch
	// Filter selects jobs.
	Filter = job.Filter
	// UniqueWhile is the period during which a job holds its unique key: [WhilePending] or [WhileActive].
	UniqueWhile = job.UniqueWhile
	// Submission is a job before it is submitted; see [Describe] and [EnqueueMiddleware]. Its arguments are unredacted, including
	// secrets.
	Submission = job.Submission
	// View is a job as [Runner.Job] returns it.
	View = job.Job
)

// The states of a job.
const (
	StateAwaitingApproval = job.AwaitingApproval
	StatePending          = job.Pending
	StateRunning          = job.Running
	StateWaiting          = job.Waiting
	StateSucceeded        = job.Succeeded
	StateFailed           = job.Failed
	StateCancelled        = job.Cancelled
)

// The outcomes of a job.
const (
	OutcomeOK      = job.OK
	OutcomeWarning = job.Warning
	OutcomeError   = job.Error
)

// Errors to act on, for [errors.Is].
var (
	ErrLeaseLost       = job.ErrLeaseLost
	ErrGone            = job.ErrGone
	ErrNotFound        = job.ErrNotFound
	ErrAlreadyTerminal = job.ErrAlreadyTerminal
	ErrOutcomeUnknown  = job.ErrOutcomeUnknown

	ErrNotAwaitingApproval = job.ErrNotAwaitingApproval
	ErrNotQueued           = job.ErrNotQueued
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

	ErrUnknownSchedule = job.ErrUnknownSchedule
	ErrInvalidSchedule = job.ErrInvalidSchedule
	ErrScheduleMoved   = job.ErrScheduleMoved
)

// The causes with which a handler's context ends; see [context.Cause].
var (
	ErrCancelled = job.ErrCancelled
	ErrStopped   = job.ErrStopped
	ErrTimeout   = job.ErrTimeout
	ErrStale     = job.ErrStale
	ErrDeadline  = job.ErrDeadline
	ErrShutdown  = job.ErrShutdown
)

// Permanent marks err as final: the job is not tried again, even if attempts are left. Permanent(nil) is nil.
func Permanent(err error) error { return job.Permanent(err) }

// IsPermanent reports whether err is marked by [Permanent].
func IsPermanent(err error) bool { return job.WishOf(err).Permanent }

// IsCancelled reports whether err, or the cause of a handler's context, means that an operator ended the job.
func IsCancelled(err error) bool { return errors.Is(err, ErrCancelled) || errors.Is(err, ErrStopped) }

// Retryable marks err as worth another attempt, up to at least ten in all if neither the job nor its kind sets a limit. Retryable(nil) is
// nil.
func Retryable(err error) error { return job.Retryable(err) }

// RetryAfter is [Retryable] with d as the wait before the next attempt. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error { return job.RetryAfter(d, err) }
