package forwarder

import (
	"cmp"
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

// reconcile periodically asks Temporal about runs that have been open for a while, until ctx is cancelled.
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

// Reconcile asks Temporal about each run that no forwarder has examined for the duration unseen.
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

// examine asks Temporal about a run. A run normally writes its job's end before it ends itself. If a job is still running although its run
// has ended, either the run was ended from outside or Temporal has lost it.
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
		why, err := f.limit(ctx, id, found.GetWorkflowExecutionInfo().GetExecution().GetRunId())
		if err != nil {
			return err
		}
		end := outbox.End{State: job.Cancelled, Error: "the run " + id + " was terminated in temporal"}
		if why != "" {
			end = outbox.End{State: job.Failed, Error: "the temporal server terminated the run " + id + ": " + why}
		}
		_, err = f.Outbox.End(ctx, i.ID, i.Epoch(), end)
		return notStale(err)
	default:
		return f.again(ctx, i, fmt.Sprintf("the run %s ended as %s without a result", id, status))
	}
}

// historyService is the identity under which the server terminates runs that exceed its limits.
const historyService = "history-service"

// limit returns the server's reason if the server itself terminated a run, or an empty string if an operator did.
func (f *Forwarder) limit(ctx context.Context, id, run string) (why string, err error) {
	last := f.Client.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	for last.HasNext() {
		event, err := last.Next()
		if err != nil {
			return "", fmt.Errorf("read the last event of workflow %s: %w", id, err)
		}
		if t := event.GetWorkflowExecutionTerminatedEventAttributes(); t.GetIdentity() == historyService {
			why = cmp.Or(t.GetReason(), "no reason given")
		}
	}
	return why, nil
}

func (f *Forwarder) again(ctx context.Context, i outbox.Item, why string) error {
	err := f.Outbox.Again(ctx, i.ID, i.Epoch(), why)
	if err == nil {
		f.Log.WarnContext(ctx, "run lost: its job runs again", telemetry.JobID, i.ID, telemetry.Why, why)
	}
	return notStale(err)
}
