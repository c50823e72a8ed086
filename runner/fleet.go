package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Blockers returns the reasons why a waiting job is not running, for example that it is not due yet, its lane is drained or its subject is
// busy. Reasons that concern the job itself come first. The list is empty for a job that is running, has finished or does not exist.
// Blockers might read all due jobs, so do not call it in a loop.
func (a Admin) Blockers(ctx context.Context, id int64) ([]job.Blocker, error) {
	list, err := view.Blockers(ctx, a.pod.Commands, id, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, a.pod.Commands) })
	return list, a.pod.DBError(err)
}

// Status returns the queue state, the lanes, the pods and the jobs in their slots, all from one snapshot.
func (a Admin) Status(ctx context.Context) (job.Fleet, error) {
	now, err := view.ReadStatus(ctx, a.pod.Commands)
	return now, a.pod.DBError(err)
}
