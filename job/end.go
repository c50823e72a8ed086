package job

// End is how a job ended for good, as the database keeps it, or a try of it that another one follows: for the hooks of a program, Options.OnEnd
// and OnRetry of package runner. It holds texts and no error values, because the process that writes an end need not be the one that ran the
// handler.
type End struct {
	ID         int64  `json:"id,string"`
	PipelineID int64  `json:"pipeline_id,string"` // the id of the first job of its pipeline; a lone job's own id
	Kind       string `json:"kind"`
	Lane       string `json:"lane"`
	Subject    string `json:"subject"` // empty: none
	Attempt    int    `json:"attempt"` // the last try, counted from 1; 0: no handler was called
	State      State  `json:"state"`   // succeeded, failed or cancelled; of a try: pending
	Reason     Reason `json:"reason"`
	// Error is the handler's error, or the cause of an end without it; empty: none. Error and Stack have at most [MaxErrorBytes] together.
	Error      string     `json:"error"`
	ErrorClass ErrorClass `json:"error_class"` // of a job or try that failed
	ErrorCode  string     `json:"error_code"`  // an SQLSTATE, or the handler's own; empty: none
	Stack      string     `json:"stack"`       // of the goroutine that panicked; empty: no handler in Go panicked
}
