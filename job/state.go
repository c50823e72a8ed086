package job

import (
	"maps"
	"slices"
)

// State is the state of a job. On the fast path, the statement that inserts a job also marks it as running.
//
//	awaiting_approval ──approve──▶ pending ──claim──▶ running ──finish──▶ succeeded
//	                                 ▲                  │  ├─────────────▶ failed
//	                                 ├──lease lapsed────┤  └─────────────▶ cancelled
//	                                 ├──handed back─────┤                 ▲
//	                                 ├──retry, later────┤                 │ last child
//	                                 │                  └──fan-out──▶ waiting
//	                                 └──operator's retry── failed, cancelled (of a job that fanned out: waiting;
//	                                                        of one that was never approved: awaiting_approval)
//
// Pending jobs can also be cancelled. A terminal state ends an epoch; only an operator can start the next one.
type State string

// The states, as they appear in the database, the API and the metrics.
const (
	AwaitingApproval State = "awaiting_approval"
	Pending          State = "pending"
	Running          State = "running"
	Waiting          State = "waiting"
	Succeeded        State = "succeeded"
	Failed           State = "failed"
	Cancelled        State = "cancelled"
)

var moves = map[State][]State{
	"":               {AwaitingApproval, Pending, Running},
	AwaitingApproval: {Pending, Cancelled},
	Pending:          {Pending, Running, Failed, Cancelled},
	Running:          {Succeeded, Failed, Cancelled, Pending, Waiting},
	Waiting:          {Succeeded, Failed, Cancelled},
	Failed:           {Pending, Waiting, AwaitingApproval},
	Cancelled:        {Pending, Waiting, AwaitingApproval},
}

// States returns all states in life-cycle order.
func States() []State {
	return []State{AwaitingApproval, Pending, Running, Waiting, Succeeded, Failed, Cancelled}
}

// CanMove reports whether a job can move from one state to another. An empty from means that the job is being created.
func CanMove(from, to State) bool {
	for _, s := range moves[from] {
		if s == to {
			return true
		}
	}
	return false
}

// Terminal reports whether a job in this state has ended.
func (s State) Terminal() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Known reports whether s is one of the seven states.
func (s State) Known() bool {
	for _, known := range States() {
		if s == known {
			return true
		}
	}
	return false
}

// Reason explains why a job is in its state.
type Reason string

// The reasons for terminal states, and for other states that need an explanation.
const (
	ReasonOK                Reason = "ok"
	ReasonError             Reason = "error"              // the handler returned a permanent error, or an error when only one attempt was allowed
	ReasonAttemptsExhausted Reason = "attempts_exhausted" // the handler returned an error with no attempts left
	ReasonCrashed           Reason = "crashed"            // its pods died or lost their leases too often
	ReasonTimeout           Reason = "timeout"
	ReasonStale             Reason = "stale"    // its handler gave no sign of life for too long
	ReasonDeadline          Reason = "deadline" // it did not finish within the maximum age
	ReasonStopped           Reason = "stopped"
	ReasonCancelled         Reason = "cancelled"
	ReasonInvalidArgs       Reason = "invalid_args"
	ReasonResultTooLarge    Reason = "result_too_large"
	ReasonUnstorable        Reason = "unstorable"      // the handler's result could not be stored
	ReasonChildrenFailed    Reason = "children_failed" // some branches of its fan-out failed (the job succeeded) or too many did (the job failed)
	ReasonAborted           Reason = "aborted"         // its pipeline was aborted
	ReasonExpired           Reason = "expired"         // it was not approved in time
	ReasonScheduled         Reason = "scheduled"       // pending: waiting for its scheduled time
	ReasonRetry             Reason = "retry"           // pending: waiting for its next attempt
	ReasonSnooze            Reason = "snooze"          // pending: waiting until the time that its handler requested
	ReasonCancelRequested   Reason = "cancel_requested"
	ReasonApproval          Reason = "approval"
	ReasonChildren          Reason = "children"
)

var reasons = map[Reason][]State{
	ReasonOK: {Succeeded}, ReasonError: {Failed}, ReasonAttemptsExhausted: {Failed}, ReasonCrashed: {Failed}, ReasonTimeout: {Failed},
	ReasonStale: {Failed}, ReasonDeadline: {Failed}, ReasonStopped: {Cancelled}, ReasonCancelled: {Cancelled}, ReasonInvalidArgs: {Failed},
	ReasonResultTooLarge: {Failed}, ReasonUnstorable: {Failed}, ReasonChildrenFailed: {Succeeded, Failed}, ReasonAborted: {Cancelled},
	ReasonExpired: {Cancelled}, ReasonScheduled: {Pending}, ReasonRetry: {Pending}, ReasonSnooze: {Pending},
	ReasonCancelRequested: {Running}, ReasonApproval: {AwaitingApproval}, ReasonChildren: {Waiting},
}

// States returns the states in which a job can have the reason, or none for an unknown reason.
func (r Reason) States() []State { return reasons[r] }

// Reasons returns all reasons, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(reasons)) }

// OutcomeStatus is the outcome of a finished job: ok, warning or error.
type OutcomeStatus string

// The possible outcomes.
const (
	OK      OutcomeStatus = "ok"
	Warning OutcomeStatus = "warning"
	Error   OutcomeStatus = "error"
)
