package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// JobPage is one page of jobs, newest first. Only the last page has an empty Cursor.
type JobPage struct {
	Jobs     []job.JobRow // at most Filter.Limit; fewer if the jobs are large or if only a few of many match
	Cursor   string       // the [job.Filter.Cursor] of the next page
	Searched time.Time    // if the search stopped early, how far back it has read; otherwise zero
}

// Jobs lists the jobs that match a filter, in pages of Filter.Limit. It returns [job.ErrInvalid] if the filter is invalid. Args, results and
// errors are not redacted, so they can include secrets. It can be called in a program that runs no jobs.
func (a Admin) Jobs(ctx context.Context, f job.Filter) (JobPage, error) {
	if err := f.Validate(); err != nil {
		return JobPage{}, fmt.Errorf("%w: list jobs: %w", job.ErrInvalid, err)
	}
	page, err := view.Jobs(ctx, a.pod.Commands, f)
	return JobPage(page), a.pod.DBError(err)
}

// Condition restricts [Admin.Approve], [Admin.Cancel] and [Admin.ForceCancel]. See [InEpoch].
type Condition struct{ epoch int }

// InEpoch makes a command return [job.ErrConflict] unless the job is in the given epoch (see [job.JobRow]). Arguments change only when a job is
// retried, and every retry begins a new epoch. The command therefore applies only to the arguments that the actor has seen.
func InEpoch(epoch int) Condition { return Condition{epoch} }

// epochIn returns the epoch that the conditions require, or 0 if they require none.
func epochIn(only []Condition) (epoch int) {
	for _, c := range only {
		epoch = c.epoch
	}
	return epoch
}

// CancelResult is the result of [Admin.Cancel] and [Admin.ForceCancel].
type CancelResult struct {
	State job.State // the job's current state: cancelled, or running until its handler returns
}

// Cancel cancels a job. A job that is not running is cancelled immediately. For a running job, Cancel cancels the handler's context, even
// on another pod, and the job ends as cancelled regardless of the handler's result.
//
// It returns [job.ErrNotFound] if the job does not exist, [job.ErrAlreadyTerminal] if it has already ended, [job.ErrConflict] if it does not
// meet a condition, and [job.ErrOutcomeUnknown] if the connection was lost before the reply arrived. Repeating the call is safe and returns
// the outcome.
func (a Admin) Cancel(ctx context.Context, id int64, only ...Condition) (CancelResult, error) {
	return a.end(ctx, id, epochIn(only), false)
}

// ForceCancel ends a job immediately, even if it is running: the handler's context is cancelled and any later result is rejected. It returns the
// same errors as [Admin.Cancel].
func (a Admin) ForceCancel(ctx context.Context, id int64, only ...Condition) (CancelResult, error) {
	return a.end(ctx, id, epochIn(only), true)
}

func (a Admin) end(ctx context.Context, id int64, epoch int, stop bool) (CancelResult, error) {
	why := job.ReasonCancelled
	if stop {
		why = job.ReasonForceCancelled
	}
	c, err := statements.Cancel(ctx, a.pod.Commands, id, epoch, stop, a.actor, a.pod.CancelRun)
	state, err := a.pod.ApplyCancel(id, c, why, err)
	if err != nil {
		return CancelResult{State: state}, err
	}
	// The job's children are cancelled with it, and its parent may have been waiting only for this job.
	a.pod.SettleAfter(ctx, telemetry.JobID, id)
	return CancelResult{State: state}, nil
}

// Approve releases a job that is awaiting approval. The job becomes due immediately, or once its delay has passed.
//
// It returns [job.ErrNotFound] if the job does not exist, and [job.ErrNotAwaitingApproval] if it is not awaiting approval or has already
// been approved. It returns [job.ErrOwnSubmission] if Options.FourEyes or the four_eyes of a lane applies to the job, and actor submitted
// it or sent it back to approval with a retry. It returns [job.ErrConflict] if the job does not meet a condition, and
// [job.ErrOutcomeUnknown] if the connection was lost before the reply arrived. Repeating the call is safe and returns the outcome.
func (a Admin) Approve(ctx context.Context, id int64, only ...Condition) error {
	conditions := statements.Approval{Second: a.pod.Options().FourEyes, Epoch: epochIn(only)}
	if err := statements.Approve(ctx, a.pod.Commands, id, conditions, a.actor); err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.WakeDue()
	a.pod.WakePeers()
	return nil
}

// Events returns up to limit events of a job with an EventNo greater than after, oldest first. If after is 0, it starts with the first
// event.
func (a Admin) Events(ctx context.Context, id int64, after, limit int) ([]job.Event, error) {
	return view.JobEvents(ctx, a.pod.Commands, id, after, limit)
}

// Stack returns the stack of the goroutine that is running a job's handler, on any pod or remote worker. The pod receives the request
// through a notification or with its next heartbeat, and forwards it to the remote worker if there is one. Reading the stacks briefly stops
// all goroutines of the process.
//
// Stack returns [job.ErrNotFound] if the job does not exist, and [job.ErrNotRunning] if it is not running. It returns [job.ErrNoAnswer] if
// the pod or the remote worker does not answer, for example because the worker runs an earlier release or is not a Go program.
func (a Admin) Stack(ctx context.Context, id int64) (job.Stack, error) {
	request, err := statements.AskStack(ctx, a.pod.Commands, id, a.actor)
	if err != nil {
		return job.Stack{}, a.pod.DBError(err)
	}
	answer, err := a.pod.AwaitAnswer(ctx, request)
	if err == nil && answer.At == nil {
		err = job.ErrNotRunning // the job has just ended
	}
	if err != nil {
		return job.Stack{}, fmt.Errorf("read the stack of job %d on %s: %w", id, request.Pod, err)
	}
	return job.Stack{Job: id, Fence: request.Fence, PodID: request.PodID, Pod: request.Pod, At: *answer.At, Stack: answer.Text}, nil
}

// Delete deletes a finished job and returns the number of jobs deleted. Given the id of a pipeline's first job, it deletes the whole
// pipeline, provided that all its jobs have finished. Events are kept until their retention period has passed.
//
// It returns [job.ErrNotFound] if the job does not exist, [job.ErrNotTerminal] if it or another job in its pipeline has not finished, and
// [job.ErrPartOfPipeline] if it is a later step. After [job.ErrOutcomeUnknown], the call can be repeated.
func (a Admin) Delete(ctx context.Context, id int64) (int, error) {
	n, err := statements.Delete(ctx, a.pod.Commands, id, a.actor)
	if err != nil {
		return 0, a.pod.CommandError(err)
	}
	return n, nil
}

// Blockers returns the reasons why a waiting job is not running, for example that it is not due yet, its lane is drained or its subject is
// busy. Reasons that concern the job itself come first. The list is empty for a job that is running, has finished or does not exist.
// Blockers may scan all due jobs, so do not call it in a loop.
func (a Admin) Blockers(ctx context.Context, id int64) ([]job.Blocker, error) {
	list, err := view.Blockers(ctx, a.pod.Commands, id, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, a.pod.Commands) })
	return list, a.pod.DBError(err)
}

// SetPriority changes the priority of a waiting job, from −100 to 100; jobs with a higher priority run first. Jobs of equal priority run in
// the order in which they became ready. A step without an explicit priority always inherits the previous step's priority. If chain is set,
// the steps planned after the job are changed too. In that case, the job may already be running, and its own priority changes only if it is
// retried.
//
// It returns [job.ErrInvalid] if the priority is out of range, [job.ErrNotFound], [job.ErrNotQueued] if the job is running and chain is not
// set, or [job.ErrAlreadyTerminal]. [job.ErrNoAnswer] means that the priority is stored, but the pod that is running the job has not
// confirmed it: the next step may still have the old priority. After [job.ErrOutcomeUnknown], the call can be repeated.
func (a Admin) SetPriority(ctx context.Context, id int64, priority int, chain bool) error {
	if priority < job.MinPriority || priority > job.MaxPriority {
		return fmt.Errorf("%w: change the priority of job %d to %d: want %d to %d", job.ErrInvalid, id, priority, job.MinPriority, job.MaxPriority)
	}
	if err := a.setPriority(ctx, id, priority, chain); err != nil {
		return a.pod.CommandError(err)
	}
	// A concurrent claim may have skipped the job because its row was locked, so wake the pods.
	a.pod.WakeAll()
	return nil
}

// setPriority changes a job's priority. If the job is running, its pod confirms the new priority for the next steps. If the job ended
// before the pod could confirm, setPriority continues with the step that followed the job.
func (a Admin) setPriority(ctx context.Context, id int64, priority int, chain bool) error {
	for ran := false; id != 0; {
		err := statements.SetPriority(ctx, a.pod.Commands, id, priority, chain, a.actor)
		switch {
		case chain && errors.Is(err, job.ErrNotQueued):
		case ran && errors.Is(err, job.ErrAlreadyTerminal):
			if id, err = statements.NextStep(ctx, a.pod.Commands, id); err != nil {
				return err
			}
			continue
		default:
			return err
		}
		request, err := statements.SetChainPriority(ctx, a.pod.Commands, id, priority, a.actor)
		if errors.Is(err, job.ErrNotRunning) {
			continue // the job has just ended, or is waiting for a retry
		}
		if err != nil || request.ID == 0 {
			return err
		}
		answer, err := a.pod.AwaitAnswer(ctx, request)
		if err != nil || answer.At != nil {
			return err
		}
		ran = true
	}
	return nil
}
