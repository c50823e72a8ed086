package work

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Outcome is the return of a handler that succeeded. At most one of Next, Snooze and Fan is set; nil stands for a success without a result.
type Outcome struct {
	Result json.RawMessage // encoded by [EncodeResult]; nil: none
	Status job.OutcomeStatus
	Next   *Submission // nil: the planned step, or the end
	Writes Writes      // in the commit that ends the job
	Snooze *Snooze     // the job waits and runs again; nil: it has ended
	Fan    *FanOut     // the job waits for its branches; nil: it does not

	EndChain bool   // the steps that were planned after the job do not follow
	Undo     []Step // for the failure of this run after its handler has returned, and of what follows
}

// Validate reports an outcome that contradicts itself. It does not check the next jobs.
func (o *Outcome) Validate() error {
	if o.Snooze != nil && len(o.Writes) > 0 {
		return job.Permanent(errors.New("a snoozed job has not ended, so no commit can include its writes: use Job.Tx"))
	}
	return job.Permanent(o.Writes.check())
}

// Snooze is a wait before a job runs again, without a verdict.
type Snooze struct {
	Wait    time.Duration // 0 or less: none
	Backoff bool          // the wait doubles with every snooze of the job
	Why     string
}

// FanOut is the branches that a job waits for: children, parts that are completed from outside, or both.
type FanOut struct {
	Children []*Submission
	Parts    int
	FailFast bool
	Join     []Step // follow the last branch, before the steps that are planned; nil: these alone
}
