package work

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Outcome is what a handler returns on success. Except for its writes, it can be stored as JSON. At most one of Next, Snooze and Fan is set. A nil Outcome is a success without a result.
type Outcome struct {
	Result json.RawMessage `json:",omitempty"` // encoded by [EncodeResult]; nil if there is none
	Status job.OutcomeStatus
	Next   *Submission // nil means the planned step, if any
	Writes Writes      `json:"-"` // written in the commit that ends the job
	Snooze *Snooze     // if set, the job waits and runs again
	Fan    *FanOut     // if set, the job waits for its branches

	EndChain bool   // do not run the steps planned after the job
	Undo     []Step // steps to run if this run fails after its handler has returned, or if a later step fails
}

// Validate returns an error if the outcome's fields contradict each other. It does not check the next jobs.
func (o *Outcome) Validate() error {
	if o.Snooze != nil && len(o.Writes) > 0 {
		return job.Permanent(errors.New("a snoozed job has not ended, so no commit can include its writes: use Job.Tx"))
	}
	return job.Permanent(o.Writes.check())
}

// Snooze makes a job wait and then run again, without a result.
type Snooze struct {
	Wait    time.Duration // 0 or less means no wait
	Backoff bool          // double the wait each time the job snoozes
	Why     string
}

// FanOut describes the branches that a job waits for: children, parts that are completed externally, or both.
type FanOut struct {
	Children []*Submission
	Parts    int
	FailFast bool
	Join     []Step // steps to run after the last branch and before the planned steps; can be nil
}
