package job

import "time"

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
	BlockerNoPods      BlockerType = "no_pods"      // no pod is alive
	BlockerNoHandler   BlockerType = "no_handler"   // no live pod has a handler for its kind
	BlockerPodsDrained BlockerType = "pods_drained" // every pod with a handler for it is drained or shutting down
)

var blockerWords = map[BlockerType]string{
	BlockerScheduled: "not due yet", BlockerRetry: "waiting for its next attempt", BlockerSnoozed: "snoozed by its handler",
	BlockerApproval: "awaiting approval", BlockerChildren: "waiting for its children", BlockerSubject: "another job is running for the subject",
	BlockerIsolated: "pods crashed while running it: each pod runs one such job at a time", BlockerDue: "about to start", BlockerPaused: "the queue is paused",
	BlockerFrozen: "the queue is frozen for maintenance", BlockerQueue: "the queue is paused or frozen", BlockerDisabled: "the lane is disabled",
	BlockerDrained: "the lane is drained", BlockerFullLane: "all slots of the lane are in use", BlockerFullPods: "all slots of the pods are in use",
	BlockerMoving: "the lane is moving to another engine", BlockerNoEngine: "no live pod serves the lane's engine",
	BlockerNoPods: "no pod is alive", BlockerNoHandler: "no live pod has a handler for its kind",
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
