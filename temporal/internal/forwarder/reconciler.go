package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"

	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// reconcile asks Temporal about runs that have not ended for a while, until ctx ends.
func (f *Forwarder) reconcile(ctx context.Context) {
	ticker := time.NewTicker(f.ReconcileEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := f.Reconcile(ctx, f.ReconcileEvery); err != nil && ctx.Err() == nil {
			f.Log.WarnContext(ctx, "could not ask temporal about runs, retrying", telemetry.Err, err)
		}
	}
}

// Reconcile asks Temporal about each run that no forwarder has examined for the given time.
func (f *Forwarder) Reconcile(ctx context.Context, unseen time.Duration) error {
	for {
		list, err := f.Outbox.Lost(ctx, unseen, atOnce)
		if err == nil {
			err = each(list, func(i outbox.Item) error { return f.examine(ctx, i) })
		}
		if err != nil || len(list) < atOnce {
			return err
		}
	}
}

// examine asks Temporal about a run. A run that has ended wrote the end of its job first. If the job is still running here, the run was
// ended from outside, or Temporal has lost it.
func (f *Forwarder) examine(ctx context.Context, i outbox.Item) error {
	id := f.Names.Workflow(i.ID, i.Epoch())
	found, err := f.Client.DescribeWorkflowExecution(ctx, id, i.Run)
	if _, unknown := errors.AsType[*serviceerror.NotFound](err); unknown {
		return f.again(ctx, i, "temporal does not know the run "+id)
	}
	if err != nil {
		return fmt.Errorf("describe workflow %s: %w", id, err)
	}
	switch status := found.GetWorkflowExecutionInfo().GetStatus(); status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED, enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED:
		return nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		_, err = f.Outbox.End(ctx, i.ID, i.Epoch(), outbox.End{State: job.Cancelled, Error: "the run " + id + " was terminated in temporal"})
		return notStale(err)
	default:
		return f.again(ctx, i, fmt.Sprintf("the run %s ended as %s without a result", id, status))
	}
}

func (f *Forwarder) again(ctx context.Context, i outbox.Item, why string) error {
	err := f.Outbox.Again(ctx, i.ID, i.Epoch(), why)
	if err == nil {
		f.Log.WarnContext(ctx, "run lost: its job runs again", telemetry.JobID, i.ID, telemetry.Why, why)
	}
	return notStale(err)
}
