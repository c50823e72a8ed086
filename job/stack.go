package job

import "time"

// Stack is the stack of the goroutine that is running a job's handler.
type Stack struct {
	Job   int64     `json:"job,string"`
	Fence int64     `json:"fence"`
	Boot  string    `json:"boot"`
	Pod   string    `json:"pod"`
	At    time.Time `json:"at"`    // when the pod answered
	Stack string    `json:"stack"` // as formatted by runtime/debug.Stack, cut to 64 KiB
}
