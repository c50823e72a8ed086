package job

import (
	"maps"
	"slices"
)

// State is where a job stands. On the fast path a new job is born running.
//
//	awaiting_approval ──approve──▶ pending ──claim──▶ running ──finish──▶ succeeded
//	                                 ▲                  │  ├─────────────▶ failed
//	                                 ├──lease lapsed────┤  └─────────────▶ cancelled
//	                                 ├──handed back─────┤                 ▲
//	                                 ├──retry, later────┤                 │ last child
//	                                 │                  └──fan-out──▶ waiting
//	                                 └──operator's retry── failed, cancelled (of a job that fanned out: waiting;
//	                                                        of one that nobody approved so: awaiting_approval)
//
// A pending job may be cancelled too. Terminal states end an epoch; only an operator opens the next one.
type State string

// The states, as the database, the API and the metrics spell them.
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

// States lists every state in the order of a job's life.
func States() []State {
	return []State{AwaitingApproval, Pending, Running, Waiting, Succeeded, Failed, Cancelled}
}

// CanMove reports whether a job may go from one state to another; from "" it is created.
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

// Reason says why a job stands where it stands.
type Reason string

// The reasons of terminal states, and of waiting ones where a person would ask.
const (
	ReasonOK                Reason = "ok"
	ReasonError             Reason = "error"              // the handler's error, final
	ReasonAttemptsExhausted Reason = "attempts_exhausted" // the handler's error, once too often
	ReasonCrashed           Reason = "crashed"            // its pod died or lapsed once too often
	ReasonTimeout           Reason = "timeout"
	ReasonStale             Reason = "stale"    // its handler gave no sign of life for too long
	ReasonDeadline          Reason = "deadline" // too old: it did not end within its lane's age
	ReasonStopped           Reason = "stopped"
	ReasonCancelled         Reason = "cancelled"
	ReasonInvalidArgs       Reason = "invalid_args"
	ReasonResultTooLarge    Reason = "result_too_large"
	ReasonUnstorable        Reason = "unstorable"      // what the handler returned could not be written
	ReasonChildrenFailed    Reason = "children_failed" // branches of its fan-out failed: some of them (it succeeded), or too many
	ReasonAborted           Reason = "aborted"         // its pipeline was aborted
	ReasonExpired           Reason = "expired"         // nobody approved it in time
	ReasonScheduled         Reason = "scheduled"       // pending: waits for its delay
	ReasonRetry             Reason = "retry"           // pending: waits for another try
	ReasonRetryLater        Reason = "retry_later"     // pending: waits for when its handler asked to be called
	ReasonCancelRequested   Reason = "cancel_requested"
	ReasonApproval          Reason = "approval"
	ReasonChildren          Reason = "children"
)

var reasons = map[Reason][]State{
	ReasonOK: {Succeeded}, ReasonError: {Failed}, ReasonAttemptsExhausted: {Failed}, ReasonCrashed: {Failed}, ReasonTimeout: {Failed},
	ReasonStale: {Failed}, ReasonDeadline: {Failed}, ReasonStopped: {Cancelled}, ReasonCancelled: {Cancelled}, ReasonInvalidArgs: {Failed},
	ReasonResultTooLarge: {Failed}, ReasonUnstorable: {Failed}, ReasonChildrenFailed: {Succeeded, Failed}, ReasonAborted: {Cancelled},
	ReasonExpired: {Cancelled}, ReasonScheduled: {Pending}, ReasonRetry: {Pending}, ReasonRetryLater: {Pending},
	ReasonCancelRequested: {Running}, ReasonApproval: {AwaitingApproval}, ReasonChildren: {Waiting},
}

// States returns the states of jobs that can have the reason; none for a reason that is not known.
func (r Reason) States() []State { return reasons[r] }

// Reasons lists every reason, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(reasons)) }

// OutcomeStatus is the outcome of a job that ended: ok, warning or error.
type OutcomeStatus string

// The three outcomes.
const (
	OK      OutcomeStatus = "ok"
	Warning OutcomeStatus = "warning"
	Error   OutcomeStatus = "error"
)
