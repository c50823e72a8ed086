package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Status returns the queue state, the lanes, the pods and the jobs in their slots, all from one snapshot.
func (a Admin) Status(ctx context.Context) (job.Fleet, error) {
	now, err := view.ReadStatus(ctx, a.pod.Commands)
	return now, a.pod.DBError(err)
}

// DrainPod drains all pods with the given name, or the pod with the given boot id, until [Admin.ResumePod]. Drained pods start no jobs and
// leave their chains' next steps to other pods; running jobs continue. Drained pods report that they are not ready. A process that restarts
// under the same name stays drained. If wait is positive, DrainPod blocks until these pods run no jobs, for at most wait. It returns
// [job.ErrUnknownPod] if there is no such pod.
func (a Admin) DrainPod(ctx context.Context, pod string, wait time.Duration, actor string) (job.Quiet, error) {
	changed, podIDs, err := admin.DrainPod(ctx, a.pod.Commands, pod, true, named(actor))
	return a.finishDrain(ctx, changed, wait, admin.Scope{PodIDs: podIDs}, err)
}

// ResumePod lets drained pods start jobs again and reports whether any was drained. It returns [job.ErrUnknownPod] if there is no such pod.
func (a Admin) ResumePod(ctx context.Context, pod, actor string) (bool, error) {
	changed, _, err := admin.DrainPod(ctx, a.pod.Commands, pod, false, named(actor))
	return changed, a.finishCommand(ctx, err)
}

// Pause pauses the queue: until [Admin.Unpause], no job starts on any pod, even after a restart. It reports whether the queue was open
// before.
func (a Admin) Pause(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Pause(ctx, a.pod.Commands, true, named(actor))
	return changed, a.finishCommand(ctx, err)
}

// Unpause resumes the queue and reports whether it was paused. A frozen queue stays frozen.
func (a Admin) Unpause(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Pause(ctx, a.pod.Commands, false, named(actor))
	return changed, a.finishCommand(ctx, err)
}

// Freeze freezes the queue for maintenance until [Admin.Thaw]. If wait is positive, Freeze blocks until no job is running, for at most
// wait.
func (a Admin) Freeze(ctx context.Context, wait time.Duration, actor string) (job.Quiet, error) {
	changed, err := admin.Freeze(ctx, a.pod.Commands, true, named(actor))
	return a.finishDrain(ctx, changed, wait, admin.Scope{}, err)
}

// Thaw ends a freeze and reports whether the queue was frozen. Drained lanes and pods stay drained, and a paused queue stays paused.
func (a Admin) Thaw(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Freeze(ctx, a.pod.Commands, false, named(actor))
	return changed, a.finishCommand(ctx, err)
}
