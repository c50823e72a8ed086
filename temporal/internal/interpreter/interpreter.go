// Package interpreter is the workflow of a job. It records its start in the outbox, calls the handler as an activity, and settles the
// verdict in PostgreSQL:
//
//	begin ──▶ handler, on the lane's task queue ──▶ settle
//	  │ another run has this epoch         │ cancel: the handler's context is cancelled, and its verdict is settled
//	  ▼                                    │ crash of a worker: called again, up to the crash limit
//	 end
//
// PostgreSQL decides what follows: a job that waits, for its next attempt or for its branches, is a row of PostgreSQL and not a workflow.
// A workflow therefore has fewer than twenty events, whatever its pipeline does, and its code has no state to version.
package interpreter

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// These are the names by which workers register the workflow and its local activities. A kind's name contains no space.
const (
	Workflow = "trapeze job"
	Begin    = "trapeze begin"
	Settle   = "trapeze settle"
)

// UnknownKind is the type of the error with which Settle refuses a kind that has no handler in its process.
const UnknownKind = "unknown_kind"

// forever is longer than any job runs. Temporal requires a limit.
const forever = 10 * 365 * 24 * time.Hour

// Run is the workflow.
func Run(ctx workflow.Context, in wire.Run) error {
	if err := serveReads(ctx, in); err != nil {
		return err
	}
	toTheEnd, _ := workflow.NewDisconnectedContext(ctx) // a cancelled run still writes its end
	toTheEnd = workflow.WithLocalActivityOptions(toTheEnd, workflow.LocalActivityOptions{
		StartToCloseTimeout:    time.Minute,
		ScheduleToCloseTimeout: forever, // an outage of PostgreSQL may last longer than one try
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 50 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 30 * time.Second,
			NonRetryableErrorTypes: []string{UnknownKind}},
	})
	first := false
	if err := workflow.ExecuteLocalActivity(toTheEnd, Begin, in.ID, in.Epoch).Get(ctx, &first); err != nil || !first {
		return err
	}
	verdict := call(ctx, in)
	err := workflow.ExecuteLocalActivity(toTheEnd, Settle, in, verdict).Get(toTheEnd, nil)
	if refused := (*temporal.ApplicationError)(nil); errors.As(err, &refused) && refused.Type() == UnknownKind {
		// This pod has no handler for the kind, and does not know what follows. The pods take turns until one does.
		toTheEnd = workflow.WithActivityOptions(toTheEnd, workflow.ActivityOptions{
			StartToCloseTimeout: time.Minute,
			RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, BackoffCoefficient: 1.5, MaximumInterval: 10 * time.Second},
		})
		err = workflow.ExecuteActivity(toTheEnd, Settle, in, verdict).Get(toTheEnd, nil)
	}
	return err
}

// call calls the handler until it returns a verdict.
func call(ctx workflow.Context, in wire.Run) (v wire.Verdict) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: forever,
		HeartbeatTimeout:    in.Heartbeat,
		WaitForCancellation: true,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second},
		Priority:            temporal.Priority{PriorityKey: priority(in.Priority)},
	})
	err := workflow.ExecuteActivity(ctx, in.Kind, in).Get(ctx, &v)
	switch canceled := (*temporal.CanceledError)(nil); {
	case err == nil:
	case errors.As(err, &canceled), ctx.Err() != nil:
		v = wire.Verdict{Failure: &wire.Failure{Message: "cancelled", Class: "error"}, Cause: "cancelled"}
	default:
		v = wire.Verdict{Lost: err.Error()}
	}
	return v
}

// priority converts a job's priority, −100 to 100, to one of Temporal's five, of which 1 is the most urgent.
func priority(p int) int {
	switch {
	case p >= 50:
		return 1
	case p > 0:
		return 2
	case p == 0:
		return 3
	case p > -50:
		return 4
	}
	return 5
}
