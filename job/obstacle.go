package job

import "time"

// Hindrance is what can keep a job that has not ended from running.
type Hindrance string

// The hindrances. Those above [HinderedDue] are of the job alone, those below of what all jobs share.
const (
	HinderedScheduled   Hindrance = "scheduled"    // its time has not come
	HinderedRetry       Hindrance = "retry"        // its next attempt is later
	HinderedSnoozed     Hindrance = "retry_later"  // its handler put it off
	HinderedApproval    Hindrance = "approval"     // a person must approve it
	HinderedBranches    Hindrance = "children"     // its branches have not ended
	HinderedSubject     Hindrance = "subject"      // another job runs for its kind and subject
	HinderedIsolated    Hindrance = "isolated"     // pods died of it: a pod runs one such job at a time
	HinderedDue         Hindrance = "due"          // nothing: the next claim takes it, unless something more urgent waits
	HinderedPaused      Hindrance = "paused"       // nothing is claimed in any lane
	HinderedFrozen      Hindrance = "frozen"       // the same, for maintenance
	HinderedGate        Hindrance = "gate"         // one of these two
	HinderedDisabled    Hindrance = "disabled"     // its lane is disabled
	HinderedDrained     Hindrance = "drained"      // its lane is drained
	HinderedFullLane    Hindrance = "full_lane"    // all slots of its lane are in use
	HinderedFullPods    Hindrance = "full_pods"    // all slots of the pods that have a handler are
	HinderedNoPods      Hindrance = "no_pods"      // no pod is alive
	HinderedNoHandler   Hindrance = "no_handler"   // no pod that is alive has a handler of its kind
	HinderedPodsDrained Hindrance = "pods_drained" // those that have one are drained, or about to stop
)

var hindrances = map[Hindrance]string{
	HinderedScheduled: "its time has not come", HinderedRetry: "its next attempt is later", HinderedSnoozed: "its handler put it off",
	HinderedApproval: "a person must approve it", HinderedBranches: "its branches have not ended", HinderedSubject: "another job runs for the subject",
	HinderedIsolated: "pods died of it: each runs one such job at a time", HinderedDue: "about to start", HinderedPaused: "everything is paused",
	HinderedFrozen: "everything is frozen for maintenance", HinderedGate: "the gate is closed", HinderedDisabled: "the lane is disabled",
	HinderedDrained: "the lane is drained", HinderedFullLane: "all slots of the lane are in use", HinderedFullPods: "all slots of the pods are in use",
	HinderedNoPods: "no pod is alive", HinderedNoHandler: "no live pod has a handler for it",
	HinderedPodsDrained: "the pods that have a handler are drained",
}

// Words says it to people, as the end of the sentence "the job does not run, for …"; empty: it is none of ours.
func (h Hindrance) Words() string { return hindrances[h] }

// Obstacle is one thing that keeps a job from running.
type Obstacle struct {
	Why   Hindrance  `json:"why"`
	Says  string     `json:"says"`          // in words, without the job below
	Do    string     `json:"do"`            // the command that ends it; empty: there is none
	Until *time.Time `json:"until"`         // when it ends by itself; nil: nobody knows
	JobID *int64     `json:"job_id,string"` // the job in its way; nil: none, or not to be seen
}
