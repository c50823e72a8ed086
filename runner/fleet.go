package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Obstacles returns the reasons why a waiting job does not run, for example that its time has not come, its lane is drained or its
// subject is busy. Reasons of the job itself come first. It returns none for a job that runs, has ended or does not exist. It may read
// all due jobs: do not call it in a loop.
func (a Admin) Blockers(ctx context.Context, id int64) ([]job.Blocker, error) {
	list, err := view.Blockers(ctx, a.pod.Commands, id, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, a.pod.Commands) })
	return list, a.pod.DBError(err)
}

// Status returns the queue state, the lanes, the pods and the jobs in their slots, all read at one moment.
func (a Admin) Status(ctx context.Context) (job.Fleet, error) {
	now, err := view.ReadStatus(ctx, a.pod.Commands)
	return now, a.pod.DBError(err)
}
