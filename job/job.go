// Package job defines the vocabulary of Trapeze: jobs with their states, reasons and errors, and the objects that operators see and change,
// such as pipelines, lanes, pods, schedules and retention. It also defines the rules: which state transitions are allowed, and which
// settings and names are valid. It does no I/O, starts no goroutines and imports only the standard library. Every other package uses it.
// Most programs use it through the aliases in package runner.
package job

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// DefaultLane is the lane of kinds that are not listed in the lane_kinds table.
const DefaultLane = "default"

// The range of priorities and the default priority. Jobs with a higher priority run first. Among jobs with the same priority, the one that
// became ready first runs first.
const (
	MinPriority     = -100
	MaxPriority     = 100
	DefaultPriority = 10
)

// Limits on a job's fields.
const (
	MaxKindBytes    = 100
	MaxSubjectBytes = 500
	MaxJobKeyBytes  = 200 // of runner.Key
	MaxKeyBytes     = 500
	MaxArgsBytes    = 1 << 20
	MaxResultBytes  = 1 << 20
	MaxErrorBytes   = 16 << 10
	MaxChainSteps   = 1000
)

// Args is the input of one kind of job. It is encoded as JSON.
type Args interface {
	// Kind returns the stable name of the handler, such as csv_ingest, in at most 100 bytes. It must not change while jobs of the kind
	// exist.
	Kind() string
}

// Lease identifies one claim of a job. The process that runs the job sends it with every write. A write is rejected unless it carries the
// job's latest lease.
type Lease struct {
	JobID int64
	Fence int64  // incremented with every claim and never reset
	Pod   string // ID of the pod or the remote worker, that claimed the job
}

// When is the condition under which a planned step runs.
type When string

// The values of When.
const (
	AfterSuccess      When = ""                    // the previous step succeeded
	Always            When = "always"              // for a join: all branches have ended, even if none succeeded
	OnFailure         When = "failed"              // the job with this plan failed
	OnFailureOrCancel When = "failed_or_cancelled" // the job with this plan failed or was cancelled
)

// Step is a planned step that has not been reached yet. A plan lists steps in this order: first the steps to run if the job itself fails,
// then the steps of its chain, each followed by its own failure steps, and finally the steps to run if the job or any step of its chain
// fails.
type Step struct {
	Kind     string          `json:"kind"`
	Args     json.RawMessage `json:"args"`
	Lane     string          `json:"lane,omitempty"`     // empty means the kind's lane, or the parent's if the kind has none
	Subject  *string         `json:"subject,omitempty"`  // nil means the parent's
	Key      *string         `json:"key,omitempty"`      // nil means the parent's
	Priority *int            `json:"priority,omitempty"` // nil means the parent's
	When     When            `json:"when,omitempty"`
	Own      bool            `json:"own,omitempty"` // runs only if the preceding step in the plan fails
}

// Follows reports whether the step runs when the steps before it succeed.
func (s Step) Follows() bool { return s.When == AfterSuccess || s.When == Always }

// Following decodes a plan and returns the steps that run if every step succeeds. It returns none for an invalid plan.
func Following(plan json.RawMessage) (steps []Step) {
	var all []Step
	_ = json.Unmarshal(plan, &all)
	for _, s := range all {
		if s.Follows() {
			steps = append(steps, s)
		}
	}
	return steps
}

// JobRow is an operator's view of a job.
type JobRow struct {
	ID              int64           `json:"id,string"`
	Kind            string          `json:"kind"`
	Lane            string          `json:"lane"`
	Subject         string          `json:"subject"`
	Key             string          `json:"key"` // empty if there is none
	State           State           `json:"state"`
	IsCurrent       bool            `json:"is_current"`
	Priority        int             `json:"priority"`
	Attempt         int             `json:"attempt"`
	MaxAttempts     *int            `json:"max_attempts"`
	Crashes         int             `json:"crashes"`
	Fence           int64           `json:"fence"`
	Epoch           int             `json:"epoch"`
	Pod             *string         `json:"pod"`
	Engine          string          `json:"engine,omitempty"`     // engine other than PostgreSQL that runs or ran the job; set only when a single job is read
	EngineURL       string          `json:"engine_url,omitempty"` // URL of its run in the engine's own dashboard; empty if there is none
	PipelineID      int64           `json:"pipeline_id,string"`
	ParentID        *int64          `json:"parent_id,string"`
	GroupID         *int64          `json:"group_id,string"` // the job that waits for this one; nil if there is none
	ChildNo         *int            `json:"child_no"`        // its branch number in the fan-out of that job, counted from 1
	Step            int             `json:"step"`
	Args            json.RawMessage `json:"args"`
	Planned         json.RawMessage `json:"planned,omitempty"`
	Result          json.RawMessage `json:"result"`
	Outcome         *OutcomeStatus  `json:"outcome"`
	Reason          *Reason         `json:"reason"`
	Error           *string         `json:"error"`
	ErrorClass      *ErrorClass     `json:"error_class"` // set if the job failed
	ErrorCode       *string         `json:"error_code"`  // an SQLSTATE or the code that the handler set
	Progress        *Progress       `json:"progress"`
	UniqueKey       *string         `json:"unique_key"`
	Replaced        int             `json:"replaced"` // number of submissions that replaced its args while it waited
	Submitter       string          `json:"submitter"`
	CreatedAt       time.Time       `json:"created_at"`
	RunAfter        *time.Time      `json:"run_after"`
	StartedAt       *time.Time      `json:"started_at"`
	FinishedAt      *time.Time      `json:"finished_at"`
	CancelRequested bool            `json:"cancel_requested"`
	EventNo         int             `json:"event_no"`
}

// Progress is the progress reported by a running job.
type Progress struct {
	Done    *int64  `json:"done"`
	Total   *int64  `json:"total"`
	Message *string `json:"message"`
}

// Event is an entry in the event history. Job is nil for events that concern a pod or the queue. EventNo numbers a job's events from 1,
// without gaps.
type Event struct {
	Cursor  string          `json:"cursor"`
	Job     *int64          `json:"job,string"`
	EventNo *int            `json:"event_no"`
	At      time.Time       `json:"at"`
	From    State           `json:"from"`
	To      State           `json:"to"`
	Actor   string          `json:"actor"`
	PodID   *string         `json:"pod_id"`
	Pod     *string         `json:"pod"`
	Fence   *int64          `json:"fence"`
	Level   string          `json:"level"`
	Event   string          `json:"event"`
	Message *string         `json:"message"`
	Fields  json.RawMessage `json:"fields"`
	Remote  bool            `json:"remote,omitempty"` // PodID identifies a remote worker
}

// Pod is a process that runs or used to run jobs.
type Pod struct {
	PodID      string     `json:"pod_id"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Kinds      []string   `json:"kinds"`
	Slots      int        `json:"slots"`
	Running    int        `json:"running"`
	StartedAt  time.Time  `json:"started_at"`
	LeaseUntil time.Time  `json:"lease_until"`
	Draining   bool       `json:"draining"` // the pod is shutting down
	Drained    bool       `json:"drained"`  // drained by an operator: it starts no jobs until it is undrained
	ClosedAt   *time.Time `json:"closed_at"`
	Closed     *string    `json:"closed"`                 // "left" or "lapsed"
	Remote     bool       `json:"remote"`                 // a remote worker: it has no database connection, and a pod serves its stream
	Owner      *string    `json:"owner"`                  // the principal allowed to act for a remote worker
	Stream     *int64     `json:"stream"`                 // the number of a remote worker's latest stream, which starts at 1 and increases with each new stream
	Drain      *Closure   `json:"drain,omitempty" db:"-"` // who drained the pod, and why; nil if it is not drained or was drained with SQL
}

// Stack is the stack of the goroutine that is running a job's handler.
type Stack struct {
	Job   int64     `json:"job,string"`
	Fence int64     `json:"fence"`
	PodID string    `json:"pod_id"`
	Pod   string    `json:"pod"`
	At    time.Time `json:"at"`    // when the pod answered
	Stack string    `json:"stack"` // as formatted by runtime/debug.Stack, truncated to 64 KiB
}

// End describes how a job finished, or a failed attempt that will be retried. It is passed to Options.OnEnd and Options.OnRetry of package
// runner. It holds strings instead of error values because the process that records the end may not be the one that ran the handler.
type End struct {
	ID         int64  `json:"id,string"`
	PipelineID int64  `json:"pipeline_id,string"` // the ID of the pipeline's first job; a single job's own ID
	Kind       string `json:"kind"`
	Lane       string `json:"lane"`
	Subject    string `json:"subject"` // empty if there is none
	Key        string `json:"key"`     // empty if there is none
	Attempt    int    `json:"attempt"` // the last attempt, counted from 1; 0 if no handler was called
	State      State  `json:"state"`   // succeeded, failed or cancelled; pending after a failed attempt
	Reason     Reason `json:"reason"`
	// Error is the text of the handler's error. If the job ended for another reason, Error describes that reason or is empty. Error and
	// Stack together are at most [MaxErrorBytes] long.
	Error      string     `json:"error"`
	ErrorClass ErrorClass `json:"error_class"` // set if the job or attempt failed
	ErrorCode  string     `json:"error_code"`  // an SQLSTATE or the code that the handler set; empty if there is none
	Stack      string     `json:"stack"`       // the stack of the goroutine that panicked; empty if no Go handler panicked
}

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
	Step              // kind, args as JSON, lane, subject, key and priority
	Delay             time.Duration
	MaxAttempts       int
	UniqueKey         string
	UniqueWhile       UniqueWhile   // applies to UniqueKey
	Replace           bool          // the job that waits with the unique key takes the args
	Debounce          time.Duration // the job becomes due so long after the latest submission
	DebounceMax       time.Duration // and at the latest so long after the first one
	Throttle          time.Duration // the job starts no earlier than so long after the last one of the unique key
	IdempotencyKey    string
	Submitter         string
	Pipeline          string // the pipeline's name
	NeedsApproval     bool
	StartBy           time.Duration // time from the submission within which the job must start; 0 means no limit
	Ordered           bool          // keeps its subject while it waits for a retry
	AllowUnregistered bool
	Then              []Step // the next steps of the chain, in order
}

// Branch is the outcome of one branch of a fan-out. A branch is either a child with its next steps, or a part that was completed
// externally.
type Branch struct {
	No      int    // the child's number, counted from 1; 0 for a part
	JobID   int64  // the last job of the branch; 0 for a part
	Kind    string // the kind of the last job
	Subject string // the subject of the last job
	Part    string // the name of the part; empty for a child
	State   State
	Outcome OutcomeStatus
	Reason  Reason
	Error   string
	JSON    json.RawMessage // the result; nil if there is none
}

// Result decodes the branch's result into v. It returns [ErrNotFound] if the branch has no result.
func (b *Branch) Result(v any) error {
	if b.JSON == nil {
		name := fmt.Sprintf("child %d", b.No)
		if b.Part != "" {
			name = fmt.Sprintf("part %q", b.Part)
		}
		return fmt.Errorf("%s ended without a result: %w", name, ErrNotFound)
	}
	return json.Unmarshal(b.JSON, v)
}

// Origin describes where a command came from, for the audit log. All fields are optional.
type Origin struct {
	Source    string // cli, dashboard or a client address; empty means the program itself, recorded as "library"
	RequestID string // the request ID, which also appears in logs
	Reason    string // the reason that the operator entered
}

type originKey struct{}

// WithOrigin returns a context that attributes commands to o in the audit log.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the Origin that [WithOrigin] stored in ctx. Without one, the source is "library".
func OriginOf(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	if o.Source == "" {
		o.Source = "library"
	}
	return o
}
