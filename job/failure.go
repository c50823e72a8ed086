package job

import "encoding/json"

// Failure describes a job that failed or was cancelled, for the job that its failure started.
type Failure struct {
	JobID      int64           `json:"job_id,string"`
	PipelineID int64           `json:"pipeline_id,string"`
	Kind       string          `json:"kind"`
	Subject    string          `json:"subject"`
	JSON       json.RawMessage `json:"args"`  // its arguments
	State      State           `json:"state"` // [Failed] or [Cancelled], unless the job was run again since
	Reason     Reason          `json:"reason"`
	Error      string          `json:"error"`       // empty: none, for example after a cancel
	ErrorClass ErrorClass      `json:"error_class"` // empty: none
	ErrorCode  string          `json:"error_code"`  // empty: none
	Attempt    int             `json:"attempt"`     // of its last try, counted from 1; 0: it never ran
}

// Args decodes the arguments of the failed job into v.
func (f *Failure) Args(v any) error { return json.Unmarshal(f.JSON, v) }
