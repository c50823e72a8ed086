package job

import "time"

// UniqueWhile is the span for which a unique key is taken.
type UniqueWhile string

// The spans of a unique key.
const (
	// WhilePending frees the key when the job starts: a trigger that comes later makes a new job, which sees the new data.
	WhilePending UniqueWhile = "pending"
	// WhileActive frees the key when the job has ended.
	WhileActive UniqueWhile = "active"
)

// Submission is a job before it is submitted, with the values of its options: a first job, a next step or a child of a fan-out. A field
// that is empty, 0 or nil was not set: then the kind decides, or for a step the job before it.
type Submission struct {
	Step           // kind, args as JSON, lane, subject and priority
	Delay          time.Duration
	MaxAttempts    int
	UniqueKey      string
	UniqueWhile    UniqueWhile // with a UniqueKey
	IdempotencyKey string
	Submitter      string
	Pipeline       string // its name
	NeedsApproval  bool
	Foreign        bool
	Then           []Step // the further steps of a chain, in order
}
