package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// SetPriority changes the priority of a waiting job, from −100 to 100; jobs with a higher priority run first. Jobs of equal priority run in
// the order in which they became ready. With chain, the planned steps after the job get the priority too. A step without a priority of its
// own always inherits the previous step's priority.
//
// It returns [job.ErrInvalid] if the priority is out of range, [job.ErrNotFound], [job.ErrNotQueued] if the job is running, or
// [job.ErrAlreadyTerminal]. After [job.ErrOutcomeUnknown], the call can be repeated.
func (a Admin) SetPriority(ctx context.Context, id int64, priority int, chain bool, actor string) error {
	if priority < job.MinPriority || priority > job.MaxPriority {
		return fmt.Errorf("%w: change the priority of job %d to %d: want %d to %d", job.ErrInvalid, id, priority, job.MinPriority, job.MaxPriority)
	}
	if err := admin.SetPriority(ctx, a.pod.Commands, id, priority, chain, named(actor)); err != nil {
		return a.pod.CommandError(err)
	}
	// A concurrent claim may have skipped the job because its row was locked, so wake the pods.
	a.pod.Wake()
	a.pod.WakePeers()
	return nil
}
