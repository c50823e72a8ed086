package work

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Outcome is a handler's successful return. At most one of Next, Snooze and Fan is set. nil is a success without a result.
type Outcome struct {
	Result json.RawMessage // encoded by [EncodeResult]; nil: none
	Status job.OutcomeStatus
	Next   *Submission // nil: the planned step, if any
	Writes Writes      // written in the commit that ends the job
	Snooze *Snooze     // the job waits and runs again; nil: it does not
	Fan    *FanOut     // the job waits for its branches; nil: it does not

	EndChain bool   // the steps that were planned after the job do not follow
	Undo     []Step // steps that follow if this run fails after its handler has returned, or a later step fails
}

// Validate returns an error for an outcome with contradictory fields. It does not check the next jobs.
func (o *Outcome) Validate() error {
	if o.Snooze != nil && len(o.Writes) > 0 {
		return job.Permanent(errors.New("a snoozed job has not ended, so no commit can include its writes: use Job.Tx"))
	}
	return job.Permanent(o.Writes.check())
}

// Snooze is a wait before a job runs again, without a result.
type Snooze struct {
	Wait    time.Duration // 0 or less: none
	Backoff bool          // the wait doubles with every snooze of the job
	Why     string
}

// FanOut describes the branches that a job waits for: children, parts that are completed from outside, or both.
type FanOut struct {
	Children []*Submission
	Parts    int
	FailFast bool
	Join     []Step // steps that follow the last branch, before the planned ones; nil: only the planned ones
}
