package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// DrainPod drains the pods of a name, or the pod of a boot id, until [Admin.ResumePod]. Drained pods start no jobs and leave the
// next steps of their chains to other pods; running jobs continue. They report that they are not ready. A process that restarts
// under the name is drained too. With a positive wait, it blocks for at most that time until no job runs there. Error:
// [job.ErrUnknownPod].
func (a Admin) DrainPod(ctx context.Context, pod string, wait time.Duration, actor string) (job.Quiet, error) {
	changed, boots, err := admin.DrainPod(ctx, a.pod.Commands, pod, true, named(actor))
	if err := a.finishCommand(ctx, err); err != nil {
		return job.Quiet{}, err
	}
	return a.quiet(ctx, changed, wait, admin.Scope{Boots: boots})
}

// ResumePod lets drained pods start jobs again, and reports whether any was drained. Error: [job.ErrUnknownPod].
func (a Admin) ResumePod(ctx context.Context, pod, actor string) (bool, error) {
	changed, _, err := admin.DrainPod(ctx, a.pod.Commands, pod, false, named(actor))
	return changed, a.finishCommand(ctx, err)
}
