// Package interpreter implements a job's workflow. The workflow records its start in the outbox, calls the handler as an activity, and
// settles the verdict in PostgreSQL:
//
//	begin ──▶ handler, on the lane's task queue ──▶ settle
//	  │ another run has this epoch         │ cancel: the handler's context is cancelled, and its verdict is settled
//	  ▼                                    │ crash of a worker: called again, up to the crash limit
//	 end
//
// PostgreSQL decides how the job continues: a job that is waiting for its next attempt or for its branches is a row in PostgreSQL, not a
// workflow. A workflow's history therefore contains about twenty events, no matter how complex the pipeline is, and its code keeps no state
// to version. A PostgreSQL outage adds at most a few dozen more.
package interpreter

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Workers register the workflow and its local activities under these names. Kind names contain no spaces.
const (
	Workflow = "trapeze job"
	Begin    = "trapeze begin"
	Settle   = "trapeze settle"
)

// UnknownKind is the type of the error that Settle returns for a kind that has no handler in its process.
const UnknownKind = "unknown_kind"

// OtherDatabase is the type of the error that a pod returns for a run of another database that mistakenly uses the same prefix.
const OtherDatabase = "other_database"

// forever is longer than any job runs. Temporal requires a limit.
const forever = 10 * 365 * 24 * time.Hour

// Run is the workflow.
func Run(ctx workflow.Context, in wire.Run) error {
	if err := serveReads(ctx, in); err != nil {
		return err
	}
	toTheEnd, _ := workflow.NewDisconnectedContext(ctx) // even a cancelled run writes its end
	if err := write(toTheEnd, in.Pods, &in.Run, Begin, in.Slim()); err != nil || in.Run == "" {
		return err
	}
	verdict := call(ctx, in)
	return write(toTheEnd, in.Pods, nil, Settle, in.Slim(), verdict) // omits the args, which may be as large as the verdict
}

// write writes to PostgreSQL with a local activity. If that fails, write continues with an activity on the task queue of all pods, whose
// retries add nothing to the history. The local activity fails if PostgreSQL does not respond for a minute, if this pod has no handler for
// the kind and cannot tell how the job continues, or if this pod uses another database.
func write(ctx workflow.Context, pods string, result any, name string, args ...any) error {
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 50 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 5 * time.Second,
			NonRetryableErrorTypes: []string{UnknownKind, OtherDatabase}},
	})
	if err := workflow.ExecuteLocalActivity(local, name, args...).Get(ctx, result); err == nil {
		return nil
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           pods,
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, BackoffCoefficient: 1.5, MaximumInterval: 10 * time.Second},
	})
	return workflow.ExecuteActivity(ctx, name, args...).Get(ctx, result)
}

// call runs the handler's activity, which Temporal retries after a crash, and returns the verdict.
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
	if died := (*temporal.TimeoutError)(nil); errors.As(err, &died) && died.HasLastHeartbeatDetails() {
		_ = died.LastHeartbeatDetails(&v.Details) // the worker died while its handler was being cancelled
	}
	return v
}

// priority converts a job's priority, −100 to 100, to one of Temporal's five levels, where 1 is the most urgent.
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
