package job

import (
	"encoding/json"
	"time"
)

// Status is the status of a pipeline: that of the last job of its spine.
type Status string

// The statuses of a pipeline.
const (
	PipelineRunning   Status = "running"   // a job of it has not ended
	PipelineSucceeded Status = "succeeded" // every step succeeded
	PipelinePartial   Status = "partial"   // its last step succeeded, but a branch of a fan-out had failed
	PipelineFailed    Status = "failed"
	PipelineCancelled Status = "cancelled"
)

// Statuses lists every status of a pipeline.
func Statuses() []Status {
	return []Status{PipelineRunning, PipelineSucceeded, PipelinePartial, PipelineFailed, PipelineCancelled}
}

// Over reports whether the pipeline has ended.
func (s Status) Over() bool { return s != PipelineRunning }

// Pipeline is a pipeline as operators see it.
type Pipeline struct {
	ID         int64           `json:"id,string"` // the id of its first job
	Name       string          `json:"name"`
	Status     Status          `json:"status"`
	Kind       string          `json:"kind"` // of the last job of its spine so far
	LastJob    int64           `json:"last_job,string"`
	Step       int             `json:"step"`     // the step number of that job, counted from 0
	Planned    json.RawMessage `json:"planned"`  // the steps that are declared and have not been reached, as []Step
	Progress   *Progress       `json:"progress"` // of that job: the ended branches, while it waits for them
	Reason     *Reason         `json:"reason"`
	Error      *string         `json:"error"`
	CreatedAt  time.Time       `json:"created_at"`
	FinishedAt *time.Time      `json:"finished_at"`
}
