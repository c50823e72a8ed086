package job

import (
	"maps"
	"slices"
	"time"
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
	AwaitingApproval: {Pending, Failed, Cancelled},
	Pending:          {AwaitingApproval, Pending, Running, Failed, Cancelled},
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
	ReasonInactive          Reason = "inactive" // its handler gave no sign of life for too long
	ReasonDeadline          Reason = "deadline" // it did not finish within the maximum age
	ReasonForceCancelled    Reason = "force_cancelled"
	ReasonCancelled         Reason = "cancelled"
	ReasonInvalidArgs       Reason = "invalid_args"
	ReasonResultTooLarge    Reason = "result_too_large"
	ReasonUnstorable        Reason = "unstorable"         // the handler's result could not be stored
	ReasonChildrenFailed    Reason = "children_failed"    // some branches of its fan-out failed (the job succeeded) or too many did (the job failed)
	ReasonPipelineCancelled Reason = "pipeline_cancelled" // its pipeline was cancelled
	ReasonExpired           Reason = "expired"            // it was not approved in time, or did not start by its time limit
	ReasonScheduled         Reason = "scheduled"          // pending: waiting for its scheduled time
	ReasonRetry             Reason = "retry"              // pending: waiting for its next attempt
	ReasonSnooze            Reason = "snooze"             // pending: waiting until the time that its handler requested
	ReasonSubject           Reason = "subject"            // pending: waiting for its subject to become free
	ReasonKey               Reason = "key"                // pending: waiting for a place of its key
	ReasonCancelRequested   Reason = "cancel_requested"
	ReasonApproval          Reason = "approval"
	ReasonChildren          Reason = "children"
)

var reasons = map[Reason][]State{
	ReasonOK: {Succeeded}, ReasonError: {Failed}, ReasonAttemptsExhausted: {Failed}, ReasonCrashed: {Failed}, ReasonTimeout: {Failed},
	ReasonInactive: {Failed}, ReasonDeadline: {Failed}, ReasonForceCancelled: {Cancelled}, ReasonCancelled: {Cancelled}, ReasonInvalidArgs: {Failed},
	ReasonResultTooLarge: {Failed}, ReasonUnstorable: {Failed}, ReasonChildrenFailed: {Succeeded, Failed}, ReasonPipelineCancelled: {Cancelled},
	ReasonExpired: {Cancelled, Failed}, ReasonScheduled: {Pending}, ReasonRetry: {Pending}, ReasonSnooze: {Pending}, ReasonSubject: {Pending}, ReasonKey: {Pending},
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

// BlockerType identifies a reason why an unfinished job is not running.
type BlockerType string

// Blocker types. Those before [BlockerDue] concern the job itself or related jobs; those after it concern the queue, the lane or the pods.
const (
	BlockerScheduled   BlockerType = "scheduled"    // it is scheduled for later
	BlockerRetry       BlockerType = "retry"        // its next attempt is not due yet
	BlockerSnoozed     BlockerType = "snooze"       // its handler postponed it
	BlockerApproval    BlockerType = "approval"     // it needs approval by an operator
	BlockerChildren    BlockerType = "children"     // branches of its fan-out are unfinished
	BlockerSubject     BlockerType = "subject"      // another job with the same kind and subject is running
	BlockerKey         BlockerType = "key"          // as many jobs of its key as may be are pending or running, in its lane or of its kind
	BlockerIsolated    BlockerType = "isolated"     // it has crashed pods before, so a pod runs only one such job at a time
	BlockerDue         BlockerType = "due"          // nothing blocks it: the next claim takes it, unless more urgent jobs are waiting
	BlockerPaused      BlockerType = "paused"       // the queue is paused: no lane claims jobs
	BlockerFrozen      BlockerType = "frozen"       // the queue is frozen for maintenance
	BlockerQueue       BlockerType = "queue_state"  // the queue is paused or frozen
	BlockerDisabled    BlockerType = "disabled"     // its lane is disabled
	BlockerDrained     BlockerType = "drained"      // its lane is drained
	BlockerMoving      BlockerType = "moving"       // its lane is moving to another engine
	BlockerNoEngine    BlockerType = "no_engine"    // no live pod serves the engine of its lane
	BlockerFullLane    BlockerType = "full_lane"    // all slots of its lane are in use
	BlockerFullPods    BlockerType = "full_pods"    // all slots of the pods that have a handler for it are in use
	BlockerRate        BlockerType = "rate"         // its lane starts no more jobs for now: because of its rate, or because a handler holds it
	BlockerNoPods      BlockerType = "no_pods"      // no pod is alive
	BlockerNoHandler   BlockerType = "no_handler"   // no live pod has a handler for its kind
	BlockerPodsDrained BlockerType = "pods_drained" // every pod with a handler for it is drained or shutting down
)

var blockerWords = map[BlockerType]string{
	BlockerScheduled: "not due yet", BlockerRetry: "waiting for its next attempt", BlockerSnoozed: "snoozed by its handler",
	BlockerApproval: "awaiting approval", BlockerChildren: "waiting for its children", BlockerSubject: "another job is running for the subject",
	BlockerKey:      "other jobs of its key come first",
	BlockerIsolated: "pods crashed while running it: each pod runs one such job at a time", BlockerDue: "about to start", BlockerPaused: "the queue is paused",
	BlockerFrozen: "the queue is frozen for maintenance", BlockerQueue: "the queue is paused or frozen", BlockerDisabled: "the lane is disabled",
	BlockerDrained: "the lane is drained", BlockerFullLane: "all slots of the lane are in use", BlockerFullPods: "all slots of the pods are in use",
	BlockerMoving: "the lane is moving to another engine", BlockerNoEngine: "no live pod serves the lane's engine",
	BlockerRate: "the lane's next start is not free yet", BlockerNoPods: "no pod is alive", BlockerNoHandler: "no live pod has a handler for its kind",
	BlockerPodsDrained: "the pods that have a handler are drained",
}

// Words describes t for people, for example "waiting for its children". It returns the empty string for an unknown value.
func (t BlockerType) Words() string { return blockerWords[t] }

// Blocker is one condition that keeps a job from running.
type Blocker struct {
	Why   BlockerType `json:"why"`
	Says  string      `json:"says"`          // a description that does not mention JobID
	Do    string      `json:"do"`            // the command that resolves it; empty if there is none
	Until *time.Time  `json:"until"`         // when it will resolve by itself; nil if unknown
	JobID *int64      `json:"job_id,string"` // the blocking job; nil if there is none or the caller may not see it
}
