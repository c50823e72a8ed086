package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// DrainPod keeps the pods of a name, or the one of a boot id, from starting anything until [Admin.ResumePod]: they claim nothing,
// and their chains leave the next step to others. They go on otherwise, and are not ready. A process that comes back under the
// name is drained too. With a wait it waits until nothing runs there. Error: [job.ErrUnknownPod].
func (a Admin) DrainPod(ctx context.Context, pod string, wait time.Duration, actor string) (job.Quiet, error) {
	changed, boots, err := admin.DrainPod(ctx, a.pod.Commands, pod, true, named(actor))
	if err := a.operated(ctx, err); err != nil {
		return job.Quiet{}, err
	}
	return a.quiet(ctx, changed, wait, admin.Scope{Boots: boots})
}

// ResumePod lets pods start jobs again, and reports whether any was drained. Error: [job.ErrUnknownPod].
func (a Admin) ResumePod(ctx context.Context, pod, actor string) (bool, error) {
	changed, _, err := admin.DrainPod(ctx, a.pod.Commands, pod, false, named(actor))
	return changed, a.operated(ctx, err)
}
