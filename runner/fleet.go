package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Blockers says why a job that waits does not run: that its time has not come, its lane is drained, its subject is busy. What is its own
// comes first. It is empty for a job that runs, has ended or does not exist. It may read all that is due; not for a loop.
func (a Admin) Blockers(ctx context.Context, id int64) ([]job.Blocker, error) {
	list, err := view.Blockers(ctx, a.pod.Commands, id, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, a.pod.Commands) })
	return list, a.pod.DBError(err)
}

// Status reads the state of the gate, the lanes, the pods and the jobs in their slots, all of one moment.
func (a Admin) Status(ctx context.Context) (job.Fleet, error) {
	now, err := view.ReadStatus(ctx, a.pod.Commands)
	return now, a.pod.DBError(err)
}
