package job

import "time"

// UniqueWhile is the period during which a job holds its unique key.
type UniqueWhile string

// The values of UniqueWhile.
const (
	// WhilePending releases the key when the job starts. A later submission then creates a new job, which sees newer data.
	WhilePending UniqueWhile = "pending"
	// WhileActive releases the key when the job has ended.
	WhileActive UniqueWhile = "active"
)

// Submission is a job to submit, with its options: the first job of a pipeline, a next step or a child of a fan-out. A field with its zero
// value is unset, and the kind's value applies. A step then inherits the lane, priority and submitter of the previous job.
type Submission struct {
	Step           // kind, args as JSON, lane, subject and priority
	Delay          time.Duration
	MaxAttempts    int
	UniqueKey      string
	UniqueWhile    UniqueWhile // applies to UniqueKey
	IdempotencyKey string
	Submitter      string
	Pipeline       string // the pipeline's name
	NeedsApproval  bool
	Foreign        bool
	Then           []Step // the next steps of the chain, in order
}
