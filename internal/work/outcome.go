package work

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Outcome is the return of a handler that succeeded. At most one of Next, Snooze and Fan is set; nil stands for a success without a result.
type Outcome struct {
	Result json.RawMessage // encoded by [EncodeResult]; nil: none
	Status job.OutcomeStatus
	Next   *Submission                                // nil: the planned step, or the end
	InTx   func(ctx context.Context, tx pgx.Tx) error // the handler's writes in the commit that ends the job; nil: none
	Snooze *Snooze                                    // the job waits and runs again; nil: it has ended
	Fan    *FanOut                                    // the job waits for its branches; nil: it does not
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
