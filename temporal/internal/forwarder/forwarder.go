// Package forwarder carries jobs from the outbox to Temporal. Any number of forwarders may work concurrently, one in each pod, and any of
// them may die at any point:
//
//   - before it starts the workflow: after 30 s, any forwarder can claim the job from the outbox again;
//   - after it has started the workflow: the workflow itself records its start. If a second forwarder starts the workflow again,
//     Temporal rejects the workflow id for as long as it remembers the run; after that, the second run finds that the epoch is over.
//
// The package also passes on cancel requests, and asks Temporal about runs that have been open for a while.
package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/interpreter"
	"github.com/trapeze-run/trapeze/temporal/internal/steps"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Forwarder starts and cancels the workflows of one engine.
type Forwarder struct {
	Client    client.Client
	Converter converter.DataConverter // the client's converter
	Outbox    *outbox.Outbox
	Names     Names
	Database  string        // see [wire.Run]
	Heartbeat time.Duration // see [wire.Run]
	Log       *slog.Logger
	Damped    *telemetry.Damped
	Wake      routine.Signal // set when jobs or cancel requests may be due

	PollInterval   time.Duration // how often the outbox is read without a signal
	ReconcileEvery time.Duration // how often Temporal is asked about open runs

	failed bool // the latest attempt to forward jobs failed; used only by Run
}

// Names generates the names that a database uses in Temporal. Databases that share a namespace need different prefixes.
type Names struct{ Prefix string }

// Queue returns a lane's task queue. Lane names contain no slashes.
func (n Names) Queue(lane string) string { return n.Prefix + "/" + lane }

// Pods returns the task queue that all pods serve to write to PostgreSQL. Lane names contain no spaces.
func (n Names) Pods() string { return n.Prefix + " pods" }

// Workflow returns the workflow id for one epoch of a job.
func (n Names) Workflow(id, epoch int64) string { return fmt.Sprintf("%s-%d-%d", n.Prefix, id, epoch) }

const (
	// atOnce is the maximum number of jobs that one read of the outbox claims in each lane.
	atOnce = 200
	// starts is the maximum number of concurrent calls to Temporal.
	starts = 16
)

// Run forwards jobs until ctx is cancelled.
func (f *Forwarder) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { f.reconcile(ctx) })
	defer both.Wait()
	ticker := time.NewTicker(f.PollInterval)
	defer ticker.Stop()
	for {
		more, err := f.once(ctx)
		f.failed = err != nil
		if err != nil && ctx.Err() == nil {
			f.Damped.Warn(ctx, "could not forward jobs to temporal, retrying", telemetry.Err, err)
		} else if err == nil {
			f.Damped.Over(ctx, "could not forward jobs to temporal, retrying")
		}
		if more && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.Wake:
		}
	}
}

// once forwards due jobs and cancel requests. It reports whether more may be due.
func (f *Forwarder) once(ctx context.Context) (more bool, err error) {
	if f.failed { // while Temporal does not respond, jobs wait in their lanes, where commands can still reach them
		if _, err := f.Client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
			return false, err
		}
	}
	due, err := f.Outbox.Due(ctx, atOnce)
	if err == nil {
		err = each(due, func(i outbox.Item) error { return f.Start(ctx, i) })
	}
	cancels, failed := f.Outbox.Cancels(ctx, atOnce)
	if failed == nil {
		failed = each(cancels, func(c outbox.Cancel) error { return f.Cancel(ctx, c) })
	}
	return len(due) >= atOnce || len(cancels) >= atOnce, errors.Join(err, failed)
}

// each calls do for every element, with several calls running concurrently, and returns the first errors.
func each[T any](list []T, do func(T) error) error {
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		errs    []error
		next    = make(chan T)
	)
	for range min(starts, len(list)) {
		running.Go(func() {
			for one := range next {
				if err := do(one); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, one := range list {
		next <- one
	}
	close(next)
	running.Wait()
	return errors.Join(errs[:min(len(errs), 3)]...)
}

// Start starts a job's workflow. If the workflow is already running, Start records its start, because the run itself may not have done so
// yet. If Temporal would reject the job's args, the job fails.
func (f *Forwarder) Start(ctx context.Context, i outbox.Item) error {
	if err := wire.TooLarge("args and checkpoint", len(i.Args)+len(i.Checkpoint)); err != nil {
		return f.refuse(ctx, i, err)
	}
	if err := failpoint.Hit(steps.Claimed); err != nil {
		return err
	}
	id := f.Names.Workflow(i.ID, i.Epoch())
	_, err := f.Client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                                       id,
		TaskQueue:                                f.Names.Queue(i.Lane),
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		EnableEagerStart:                         true, // a worker in this process with a free slot begins without another call
		StaticSummary:                            i.Kind,
		Memo:                                     map[string]any{claim: i.ClaimedAt},
	}, interpreter.Workflow, f.run(i))
	if already, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); ok {
		err = f.started(ctx, i, id, already.RunId)
	}
	if invalid, ok := errors.AsType[*serviceerror.InvalidArgument](err); ok && strings.Contains(invalid.Message, "exceeds") {
		return f.refuse(ctx, i, fmt.Errorf("%w: %w: pass a reference in the args, or raise limit.blobSize.error of the Temporal server", job.ErrTooLarge, err))
	}
	if err != nil {
		return fmt.Errorf("start workflow %s: %w", id, err)
	}
	return failpoint.Hit(steps.Started)
}

func (f *Forwarder) run(i outbox.Item) wire.Run {
	r := wire.RunOf(i, f.Heartbeat)
	r.Pods, r.Database = f.Names.Pods(), f.Database
	return r
}

// refuse fails a job that Temporal cannot run.
func (f *Forwarder) refuse(ctx context.Context, i outbox.Item, why error) error {
	_, err := f.Outbox.End(ctx, i.ID, i.Epoch(), outbox.End{State: job.Failed, Reason: job.ReasonInvalidArgs, Class: job.ClassInvalidArgs, Error: why.Error()})
	return notStale(err)
}

// claim is the name of the memo field that holds the time at which the job was claimed. It distinguishes the job from one with the same id
// and epoch in another database, which was claimed at another time.
const claim = "trapeze claim"

// started records the start of a workflow that an earlier call started.
func (f *Forwarder) started(ctx context.Context, i outbox.Item, id, run string) error {
	found, err := f.Client.DescribeWorkflowExecution(ctx, id, run)
	if err != nil {
		return err
	}
	var claimed time.Time
	if err := f.Converter.FromPayload(found.GetWorkflowExecutionInfo().GetMemo().GetFields()[claim], &claimed); err != nil || !claimed.Equal(i.ClaimedAt) {
		return fmt.Errorf("%w: the workflow id is in use by another database: give each database that uses the namespace its own prefix", job.ErrInvalidSetting)
	}
	return notStale(f.Outbox.Started(ctx, i.ID, i.Epoch(), run))
}

// notStale returns nil if err means that the job has already ended or is in another epoch, and err otherwise.
func notStale(err error) error {
	if errors.Is(err, outbox.ErrInactive) {
		return nil
	}
	return err
}

// Cancel passes on a cancel request. If the job has already ended, its run is terminated.
func (f *Forwarder) Cancel(ctx context.Context, c outbox.Cancel) (err error) {
	id := f.Names.Workflow(c.ID, c.Epoch())
	if c.Reason == job.ReasonCancelled {
		err = f.Client.CancelWorkflow(ctx, id, c.Run)
	} else {
		err = f.Client.TerminateWorkflow(ctx, id, c.Run, string(c.Reason))
	}
	if _, unknown := errors.AsType[*serviceerror.NotFound](err); err != nil && !unknown {
		return fmt.Errorf("cancel workflow %s: %w", id, err)
	}
	return f.Outbox.Delivered(ctx, c)
}
