package job

// End describes how a job ended for good, or a failed try that another one follows. Options.OnEnd and OnRetry of package runner receive it.
// It holds texts instead of error values, because the process that writes an end may not be the one that ran the handler.
type End struct {
	ID         int64  `json:"id,string"`
	PipelineID int64  `json:"pipeline_id,string"` // the id of the pipeline's first job; for a single job, its id
	Kind       string `json:"kind"`
	Lane       string `json:"lane"`
	Subject    string `json:"subject"` // empty: none
	Attempt    int    `json:"attempt"` // the last try, counted from 1; 0: no handler was called
	State      State  `json:"state"`   // succeeded, failed or cancelled; pending for a failed try
	Reason     Reason `json:"reason"`
	// Error is the handler's error, or the cause if the job ended without one; empty: none. Error and Stack together have at most
	// [MaxErrorBytes].
	Error      string     `json:"error"`
	ErrorClass ErrorClass `json:"error_class"` // set if the job or try failed
	ErrorCode  string     `json:"error_code"`  // an SQLSTATE, or the code that the handler set; empty: none
	Stack      string     `json:"stack"`       // the stack of the goroutine that panicked; empty: no Go handler panicked
}
