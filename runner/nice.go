package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// SetPriority gives a job that waits another priority, −100 to 100, higher first; among its new equals it comes when it became ready. With
// chain the steps that are planned after it get it too; a step that names none takes that of the step before it in any case.
//
// Errors: [job.ErrInvalid] for a priority out of range, [job.ErrNotFound], [job.ErrNotQueued] while it runs,
// [job.ErrAlreadyTerminal], and [job.ErrOutcomeUnknown]: asking again is safe.
func (a Admin) SetPriority(ctx context.Context, id int64, priority int, chain bool, actor string) error {
	if priority < job.MinPriority || priority > job.MaxPriority {
		return fmt.Errorf("%w: change the priority of job %d to %d: want %d to %d", job.ErrInvalid, id, priority, job.MinPriority, job.MaxPriority)
	}
	if err := admin.SetPriority(ctx, a.pod.Commands, id, priority, chain, named(actor)); err != nil {
		return a.pod.CommandError(err)
	}
	// A claim that met the change has passed the job by.
	a.pod.Wake()
	a.pod.WakePeers()
	return nil
}
