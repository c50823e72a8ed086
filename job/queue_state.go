package job

import "time"

// QueueState is the state of the queue. While the queue is paused or frozen, no job starts on any pod.
type QueueState struct {
	Paused bool `json:"paused"`
	Frozen bool `json:"frozen"` // for maintenance

	Pause  *Closure `json:"pause,omitempty" db:"-"`  // who paused the queue, and why; nil if it was paused with SQL, or if this field was not read
	Freeze *Closure `json:"freeze,omitempty" db:"-"` // likewise for a freeze
}

// Closure describes who closed the queue, a lane or a pod, when, and why.
type Closure struct {
	Since  time.Time `json:"since"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason"` // empty if the operator gave no reason
}

// Quiet is the result of a command that stops jobs from starting and waits for running jobs to end.
type Quiet struct {
	Changed bool `json:"changed"` // false if the target was already paused, frozen or drained
	Running int  `json:"running"` // jobs that are still running in the command's scope
	// Quiet means that no job is running in the command's scope and that none will start there until the scope is resumed, because every
	// pod has applied the command.
	Quiet bool `json:"quiet"`
	// TimedOut means that the wait timed out while jobs were still running. The jobs keep running, and the command stays in force.
	TimedOut bool `json:"timed_out"`
}

// Slot describes a slot in use, with its job, pod, claim time and progress.
type Slot struct {
	Job             int64     `json:"job,string"`
	Kind            string    `json:"kind"`
	Lane            string    `json:"lane"`
	Subject         string    `json:"subject"`
	Priority        int       `json:"priority"`
	Attempt         int       `json:"attempt"`
	Fence           int64     `json:"fence"`
	Boot            string    `json:"pod_id"`
	Pod             string    `json:"pod"`
	Since           time.Time `json:"since"`   // when the job was claimed
	Fetched         bool      `json:"fetched"` // claimed ahead of a free slot; no start is recorded yet
	CancelRequested bool      `json:"cancel_requested"`
	Progress        *Progress `json:"progress"`
}
