package job

import "encoding/json"

// Failure is a job that failed or was cancelled, for the job that follows that.
type Failure struct {
	JobID      int64           `json:"job_id,string"`
	PipelineID int64           `json:"pipeline_id,string"`
	Kind       string          `json:"kind"`
	Subject    string          `json:"subject"`
	JSON       json.RawMessage `json:"args"`  // its arguments
	State      State           `json:"state"` // [Failed] or [Cancelled], unless it has been run again since
	Reason     Reason          `json:"reason"`
	Error      string          `json:"error"`       // empty: none, as of one that was cancelled
	ErrorClass ErrorClass      `json:"error_class"` // empty: none
	ErrorCode  string          `json:"error_code"`  // empty: none
	Attempt    int             `json:"attempt"`     // of its last try, from 1; 0: it never ran
}

// Args decodes the arguments of the failed job into v.
func (f *Failure) Args(v any) error { return json.Unmarshal(f.JSON, v) }
