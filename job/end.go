package job

// End describes how a job finished, or a failed attempt that will be retried. It is passed to Options.OnEnd and Options.OnRetry of package
// runner. It holds strings instead of error values because the process that records the end may not be the one that ran the handler.
type End struct {
	ID         int64  `json:"id,string"`
	PipelineID int64  `json:"pipeline_id,string"` // the ID of the pipeline's first job; a single job's own ID
	Kind       string `json:"kind"`
	Lane       string `json:"lane"`
	Subject    string `json:"subject"` // empty if there is none
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
