package runner

import (
	"context"
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// SetPriority changes the priority of a waiting job, from −100 to 100; jobs with a higher priority run first. Jobs of equal priority run in
// the order in which they became ready. A step without an explicit priority always inherits the previous step's priority. If chain is set,
// the steps planned after the job are changed too. In that case, the job may already be running, and its own priority changes only if it is
// retried.
//
// It returns [job.ErrInvalid] if the priority is out of range, [job.ErrNotFound], [job.ErrNotQueued] if the job is running and chain is not
// set, or [job.ErrAlreadyTerminal]. [job.ErrNoAnswer] means that the priority is stored, but the pod that is running the job has not
// confirmed it: the next step may still have the old priority. After [job.ErrOutcomeUnknown], the call can be repeated.
func (a Admin) SetPriority(ctx context.Context, id int64, priority int, chain bool, actor string) error {
	if priority < job.MinPriority || priority > job.MaxPriority {
		return fmt.Errorf("%w: change the priority of job %d to %d: want %d to %d", job.ErrInvalid, id, priority, job.MinPriority, job.MaxPriority)
	}
	if err := a.setPriority(ctx, id, priority, chain, named(actor)); err != nil {
		return a.pod.CommandError(err)
	}
	// A concurrent claim may have skipped the job because its row was locked, so wake the pods.
	a.pod.WakeAll()
	return nil
}

// setPriority changes a job's priority. If the job is running, its pod confirms the new priority for the next steps. If the job ended
// before the pod could confirm, setPriority continues with the step that followed the job.
func (a Admin) setPriority(ctx context.Context, id int64, priority int, chain bool, actor string) error {
	for ran := false; id != 0; {
		err := admin.SetPriority(ctx, a.pod.Commands, id, priority, chain, actor)
		switch {
		case chain && errors.Is(err, job.ErrNotQueued):
		case ran && errors.Is(err, job.ErrAlreadyTerminal):
			if id, err = admin.NextStep(ctx, a.pod.Commands, id); err != nil {
				return err
			}
			continue
		default:
			return err
		}
		request, err := admin.SetChainPriority(ctx, a.pod.Commands, id, priority, actor)
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
