package job

import "time"

// BlockerType is the type of a reason why an unfinished job does not run.
type BlockerType string

// The types of blockers. Those above [BlockerDue] are of the job alone, those below of what all jobs share.
const (
	BlockerScheduled   BlockerType = "scheduled"    // its time has not come
	BlockerRetry       BlockerType = "retry"        // its next attempt is later
	BlockerSnoozed     BlockerType = "retry_later"  // its handler put it off
	BlockerApproval    BlockerType = "approval"     // a person must approve it
	BlockerChildren    BlockerType = "children"     // its branches have not ended
	BlockerSubject     BlockerType = "subject"      // another job runs for its kind and subject
	BlockerIsolated    BlockerType = "isolated"     // pods died of it: a pod runs one such job at a time
	BlockerDue         BlockerType = "due"          // nothing: the next claim takes it, unless something more urgent waits
	BlockerPaused      BlockerType = "paused"       // nothing is claimed in any lane
	BlockerFrozen      BlockerType = "frozen"       // the same, for maintenance
	BlockerQueue       BlockerType = "gate"         // one of these two
	BlockerDisabled    BlockerType = "disabled"     // its lane is disabled
	BlockerDrained     BlockerType = "drained"      // its lane is drained
	BlockerFullLane    BlockerType = "full_lane"    // all slots of its lane are in use
	BlockerFullPods    BlockerType = "full_pods"    // all slots of the pods that have a handler are
	BlockerNoPods      BlockerType = "no_pods"      // no pod is alive
	BlockerNoHandler   BlockerType = "no_handler"   // no pod that is alive has a handler of its kind
	BlockerPodsDrained BlockerType = "pods_drained" // those that have one are drained, or about to stop
)

var blockerWords = map[BlockerType]string{
	BlockerScheduled: "not due yet", BlockerRetry: "waiting for its next attempt", BlockerSnoozed: "snoozed by its handler",
	BlockerApproval: "awaiting approval", BlockerChildren: "waiting for its children", BlockerSubject: "another job is running for the subject",
	BlockerIsolated: "pods crashed while running it: each pod runs one such job at a time", BlockerDue: "about to start", BlockerPaused: "the queue is paused",
	BlockerFrozen: "the queue is frozen for maintenance", BlockerQueue: "the queue is paused or frozen", BlockerDisabled: "the lane is disabled",
	BlockerDrained: "the lane is drained", BlockerFullLane: "all slots of the lane are in use", BlockerFullPods: "all slots of the pods are in use",
	BlockerNoPods: "no pod is alive", BlockerNoHandler: "no live pod has a handler for its kind",
	BlockerPodsDrained: "the pods that have a handler are drained",
}

// Words describes t for people, such as "waiting for its children"; empty for an unknown value.
func (t BlockerType) Words() string { return blockerWords[t] }

// Blocker is one thing that keeps a job from running.
type Blocker struct {
	Why   BlockerType `json:"why"`
	Says  string      `json:"says"`          // in words, without the job below
	Do    string      `json:"do"`            // the command that ends it; empty: there is none
	Until *time.Time  `json:"until"`         // when it ends by itself; nil: nobody knows
	JobID *int64      `json:"job_id,string"` // the job in its way; nil: none, or not to be seen
}
