package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// SetPriority changes the priority of a waiting job: −100 to 100, higher first. Among jobs of equal priority its place depends on when it
// became ready. With chain, the planned steps after it get the priority too. A step without its own priority always inherits that of the
// previous step.
//
// Errors: [job.ErrInvalid] for a priority out of range, [job.ErrNotFound], [job.ErrNotQueued] while it runs, [job.ErrAlreadyTerminal], and
// [job.ErrOutcomeUnknown], after which the call can be repeated.
func (a Admin) SetPriority(ctx context.Context, id int64, priority int, chain bool, actor string) error {
	if priority < job.MinPriority || priority > job.MaxPriority {
		return fmt.Errorf("%w: change the priority of job %d to %d: want %d to %d", job.ErrInvalid, id, priority, job.MinPriority, job.MaxPriority)
	}
	if err := admin.SetPriority(ctx, a.pod.Commands, id, priority, chain, named(actor)); err != nil {
		return a.pod.CommandError(err)
	}
	// A concurrent claim may have skipped the job because its row was locked.
	a.pod.Wake()
	a.pod.WakePeers()
	return nil
}
