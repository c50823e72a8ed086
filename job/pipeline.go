package job

import (
	"encoding/json"
	"time"
)

// Status is the status of a pipeline. It is derived from the last job of the pipeline's spine, which excludes children of fan-outs.
type Status string

// The statuses of a pipeline.
const (
	PipelineRunning   Status = "running"   // at least one of its jobs has not ended
	PipelineSucceeded Status = "succeeded" // every step succeeded
	PipelinePartial   Status = "partial"   // the last step succeeded, but a branch of a fan-out failed
	PipelineFailed    Status = "failed"
	PipelineCancelled Status = "cancelled"
)

// Statuses lists every status of a pipeline.
func Statuses() []Status {
	return []Status{PipelineRunning, PipelineSucceeded, PipelinePartial, PipelineFailed, PipelineCancelled}
}

// Over reports whether the pipeline has ended.
func (s Status) Over() bool { return s != PipelineRunning }

// Pipeline is an operator's view of a pipeline.
type Pipeline struct {
	ID         int64           `json:"id,string"` // the ID of its first job
	Name       string          `json:"name"`
	Status     Status          `json:"status"`
	Kind       string          `json:"kind"` // the kind of the latest job in its spine
	LastJob    int64           `json:"last_job,string"`
	Step       int             `json:"step"`     // the step number of that job, counted from 0
	Planned    json.RawMessage `json:"planned"`  // declared steps that have not been reached, as []Step
	Progress   *Progress       `json:"progress"` // the progress of that job, or the number of finished branches while it waits for them
	Reason     *Reason         `json:"reason"`
	Error      *string         `json:"error"`
	CreatedAt  time.Time       `json:"created_at"`
	FinishedAt *time.Time      `json:"finished_at"`
}

// Tree is a pipeline with its successive jobs (its spine) and their fan-outs' children.
type Tree struct {
	Pipeline
	Jobs []TreeJob `json:"jobs"`
}

// TreeJob is a job in a [Tree].
type TreeJob struct {
	JobRow
	FanOut *TreeFanOut `json:"fan_out,omitempty"` // nil if the job has not fanned out, or if the tree is too large to include the fan-out
}

// TreeFanOut is a job's fan-out. Each child is represented by the last job in its chain.
type TreeFanOut struct {
	Branches int           `json:"branches"`
	States   map[State]int `json:"states"` // number of children by state
	Shown    []TreeJob     `json:"shown"`  // children that are running or did not succeed
}
