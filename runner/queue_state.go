package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

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
