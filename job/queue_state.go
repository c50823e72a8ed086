package job

import "time"

// QueueState is the state of the queue of all lanes. While it is paused or frozen, no job starts on any pod.
type QueueState struct {
	Paused bool `json:"paused"`
	Frozen bool `json:"frozen"` // for maintenance
}

// Quiet is what a command that lets work end found.
type Quiet struct {
	Changed bool `json:"changed"` // false: it was so before
	Running int  `json:"running"` // jobs that still run where it was asked for
	// Quiet says that nothing runs there, and that nothing will until it is resumed: every pod has heard.
	Quiet bool `json:"quiet"`
	// TimedOut says that it was waited for in vain. Nothing was ended, and what was closed stays closed.
	TimedOut bool `json:"timed_out"`
}

// Slot is a slot in use: the job in it, on which pod, since when, and how far it is.
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
	Since           time.Time `json:"since"` // of this claim
	CancelRequested bool      `json:"cancel_requested"`
	Progress        *Progress `json:"progress"`
}
