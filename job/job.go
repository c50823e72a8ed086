package job

import (
	"encoding/json"
	"time"
)

// DefaultLane is the lane of kinds that the table lane_kinds does not list.
const DefaultLane = "default"

// Limits and default of a priority. Jobs of higher priority run first; among equals, the job that became ready first.
const (
	MinPriority     = -100
	MaxPriority     = 100
	DefaultPriority = 10
)

// Limits on the contents of a job.
const (
	MaxKindBytes    = 100
	MaxSubjectBytes = 500
	MaxKeyBytes     = 500
	MaxArgsBytes    = 1 << 20
	MaxResultBytes  = 1 << 20
	MaxErrorBytes   = 16 << 10
	MaxChainSteps   = 1000
)

// Args is the input of one kind of job: a type that encodes to JSON and names its kind.
type Args interface {
	// Kind returns the stable name of the handler, such as csv_ingest: at most 100 bytes. It must not change while jobs of the kind exist.
	Kind() string
}

// Lease identifies one claim of a job. Every write of a worker carries it. A write whose lease is not the job's latest is rejected.
type Lease struct {
	JobID int64
	Fence int64  // rises by one with every claim and is never reset
	Pod   string // the boot id of the process that claimed the job
}

// When is the condition under which a planned step follows.
type When string

// The values of When.
const (
	AfterSuccess      When = ""                    // the step before it succeeded
	Always            When = "always"              // of a join: all branches have ended, even if none succeeded
	OnFailure         When = "failed"              // the job that has the plan failed
	OnFailureOrCancel When = "failed_or_cancelled" // that job failed or was cancelled
)

// Step is a planned step that has not been reached yet. A plan lists, in this order: the steps that follow a failure of the job itself, the
// steps of its chain, each followed by the steps for its failure, and the steps that follow a failure of any of these.
type Step struct {
	Kind     string          `json:"kind"`
	Args     json.RawMessage `json:"args"`
	Lane     string          `json:"lane,omitempty"`     // empty: the kind's lane, else its parent's
	Subject  *string         `json:"subject,omitempty"`  // nil: its parent's
	Priority *int            `json:"priority,omitempty"` // nil: its parent's
	When     When            `json:"when,omitempty"`
	Own      bool            `json:"own,omitempty"` // it follows only a failure of the step before it in the plan
}

// Follows reports whether the step follows when the steps before it succeed.
func (s Step) Follows() bool { return s.When == AfterSuccess || s.When == Always }

// Following decodes a plan and returns the steps that follow when every step succeeds. It returns none for an invalid plan.
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

// Job is a job as operators see it.
type Job struct {
	ID              int64           `json:"id,string"`
	Kind            string          `json:"kind"`
	Lane            string          `json:"lane"`
	Subject         string          `json:"subject"`
	State           State           `json:"state"`
	IsCurrent       bool            `json:"is_current"`
	Priority        int             `json:"priority"`
	Attempt         int             `json:"attempt"`
	MaxAttempts     *int            `json:"max_attempts"`
	Crashes         int             `json:"crashes"`
	Fence           int64           `json:"fence"`
	Epoch           int             `json:"epoch"`
	Pod             *string         `json:"pod"`
	PipelineID      int64           `json:"pipeline_id,string"`
	ParentID        *int64          `json:"parent_id,string"`
	GroupID         *int64          `json:"group_id,string"` // the job that waits for it; nil: none
	ChildNo         *int            `json:"child_no"`        // its branch of that fan-out, counted from 1
	Step            int             `json:"step"`
	Args            json.RawMessage `json:"args"`
	Planned         json.RawMessage `json:"planned,omitempty"`
	Result          json.RawMessage `json:"result"`
	Outcome         *OutcomeStatus  `json:"outcome"`
	Reason          *Reason         `json:"reason"`
	Error           *string         `json:"error"`
	ErrorClass      *ErrorClass     `json:"error_class"` // set if the job failed
	ErrorCode       *string         `json:"error_code"`  // an SQLSTATE, or the code that the handler set
	Progress        *Progress       `json:"progress"`
	UniqueKey       *string         `json:"unique_key"`
	Submitter       string          `json:"submitter"`
	CreatedAt       time.Time       `json:"created_at"`
	RunAfter        *time.Time      `json:"run_after"`
	StartedAt       *time.Time      `json:"started_at"`
	FinishedAt      *time.Time      `json:"finished_at"`
	CancelRequested bool            `json:"cancel_requested"`
	EventNo         int             `json:"event_no"`
}

// Progress is the progress that a running job reported.
type Progress struct {
	Done    *int64  `json:"done"`
	Total   *int64  `json:"total"`
	Message *string `json:"message"`
}

// Event is one entry of the history. Job is nil for events of pods and of the queue. EventNo counts from 1 within each job, without gaps.
type Event struct {
	Cursor  string          `json:"cursor"`
	Job     *int64          `json:"job,string"`
	EventNo *int            `json:"event_no"`
	At      time.Time       `json:"at"`
	From    State           `json:"from"`
	To      State           `json:"to"`
	Actor   string          `json:"actor"`
	Boot    *string         `json:"boot"`
	Pod     *string         `json:"pod"`
	Fence   *int64          `json:"fence"`
	Level   string          `json:"level"`
	Event   string          `json:"event"`
	Message *string         `json:"message"`
	Fields  json.RawMessage `json:"fields"`
	Remote  bool            `json:"remote,omitempty"` // Boot is, or was, a remote worker
}

// Pod is a process that runs, or ran, jobs.
type Pod struct {
	Boot       string     `json:"boot"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Kinds      []string   `json:"kinds"`
	Slots      int        `json:"slots"`
	Running    int        `json:"running"`
	StartedAt  time.Time  `json:"started_at"`
	LeaseUntil time.Time  `json:"lease_until"`
	Draining   bool       `json:"draining"` // it is shutting down
	Drained    bool       `json:"drained"`  // drained by an operator: it starts nothing until it is resumed
	ClosedAt   *time.Time `json:"closed_at"`
	Closed     *string    `json:"closed"` // left, lapsed
	Remote     bool       `json:"remote"` // a remote worker: it has no database, and a pod serves its stream
	Owner      *string    `json:"owner"`  // the principal that may act for a remote worker
	Stream     *int64     `json:"stream"` // the number of a remote worker's latest stream, from 1: it rises with each
}
