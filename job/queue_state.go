package job

import "time"

// Gate is the state of the queue. While it is paused or frozen, no job starts on any pod.
type QueueState struct {
	Paused bool `json:"paused"`
	Frozen bool `json:"frozen"` // for maintenance
}

// Quiet is the result of a command that stops new starts and waits for running jobs to end.
type Quiet struct {
	Changed bool `json:"changed"` // false: it was already paused, frozen or drained
	Running int  `json:"running"` // jobs that still run in the scope of the command
	// Quiet means that nothing runs in the scope of the command and that nothing starts there until it is
	// resumed: every pod knows of the command.
	Quiet bool `json:"quiet"`
	// TimedOut means that the wait ended while jobs were still running. No job was ended, and the command
	// stays in force.
	TimedOut bool `json:"timed_out"`
}

// Slot is a slot in use: its job, the pod, the time of the claim and the progress.
type Slot struct {
	Job             int64     `json:"job,string"`
	Kind            string    `json:"kind"`
	Lane            string    `json:"lane"`
	Subject         string    `json:"subject"`
	Priority        int       `json:"priority"`
	Attempt         int       `json:"attempt"`
	Fence           int64     `json:"fence"`
	Boot            string    `json:"boot"`
	Pod             string    `json:"pod"`
	Since           time.Time `json:"since"` // the time of this claim
	CancelRequested bool      `json:"cancel_requested"`
	Progress        *Progress `json:"progress"`
}
