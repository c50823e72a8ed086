package job

import "time"

// UniqueWhile is the period during which a job holds its unique key.
type UniqueWhile string

// The periods of a unique key.
const (
	// WhilePending frees the key when the job starts. A trigger that comes later makes a new job, which sees the new data.
	WhilePending UniqueWhile = "pending"
	// WhileActive frees the key when the job has ended.
	WhileActive UniqueWhile = "active"
)

// Submission is a job before it is submitted, with its options: a first job, a next step or a child of a fan-out. An empty, 0 or nil
// field is not set: the kind decides or, for a step, the previous job.
type Submission struct {
	Step           // kind, args as JSON, lane, subject and priority
	Delay          time.Duration
	MaxAttempts    int
	UniqueKey      string
	UniqueWhile    UniqueWhile // with a UniqueKey
	IdempotencyKey string
	Submitter      string
	Pipeline       string // the pipeline's name
	NeedsApproval  bool
	Foreign        bool
	Then           []Step // the further steps of a chain, in order
}
