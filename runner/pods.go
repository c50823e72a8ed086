package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// DrainPod drains all pods with the given name, or the pod with the given boot id, until [Admin.ResumePod]. Drained pods start no jobs and
// leave the next steps of their chains to other pods; running jobs continue. Drained pods report that they are not ready. A process that
// restarts under the same name is drained too. If wait is positive, DrainPod blocks until these pods run no jobs, for at most wait. It
// returns [job.ErrUnknownPod] if there is no such pod.
func (a Admin) DrainPod(ctx context.Context, pod string, wait time.Duration, actor string) (job.Quiet, error) {
	changed, boots, err := admin.DrainPod(ctx, a.pod.Commands, pod, true, named(actor))
	return a.finishDrain(ctx, changed, wait, admin.Scope{Boots: boots}, err)
}

// ResumePod lets drained pods start jobs again and reports whether any was drained. It returns [job.ErrUnknownPod] if there is no such pod.
func (a Admin) ResumePod(ctx context.Context, pod, actor string) (bool, error) {
	changed, _, err := admin.DrainPod(ctx, a.pod.Commands, pod, false, named(actor))
	return changed, a.finishCommand(ctx, err)
}
