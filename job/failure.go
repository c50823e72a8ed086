package job

import "encoding/json"

// Failure describes a failed or cancelled job. It is available to the job that was submitted because of the failure.
type Failure struct {
	JobID      int64           `json:"job_id,string"`
	PipelineID int64           `json:"pipeline_id,string"`
	Kind       string          `json:"kind"`
	Subject    string          `json:"subject"`
	JSON       json.RawMessage `json:"args"`  // the arguments
	State      State           `json:"state"` // [Failed] or [Cancelled], unless the job has been retried since
	Reason     Reason          `json:"reason"`
	Error      string          `json:"error"`       // empty if there is none, for example after a cancellation
	ErrorClass ErrorClass      `json:"error_class"` // empty if there is none
	ErrorCode  string          `json:"error_code"`  // empty if there is none
	Attempt    int             `json:"attempt"`     // the last attempt, counted from 1; 0 if it never ran
}

// Args decodes the failed job's arguments into v.
func (f *Failure) Args(v any) error { return json.Unmarshal(f.JSON, v) }
