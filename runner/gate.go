package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Pause closes the gate: nothing starts anywhere, also after restarts, until [Admin.Unpause]. It reports whether that is news.
func (a Admin) Pause(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Pause(ctx, a.pod.Commands, true, named(actor))
	return changed, a.operated(ctx, err)
}

// Unpause opens the gate, and reports whether it was paused. One that is frozen stays closed.
func (a Admin) Unpause(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Pause(ctx, a.pod.Commands, false, named(actor))
	return changed, a.operated(ctx, err)
}

// Freeze closes the gate for maintenance until [Admin.Thaw]. With a wait it waits until nothing runs anywhere.
func (a Admin) Freeze(ctx context.Context, wait time.Duration, actor string) (job.Quiet, error) {
	changed, err := admin.Freeze(ctx, a.pod.Commands, true, named(actor))
	if err := a.operated(ctx, err); err != nil {
		return job.Quiet{}, err
	}
	return a.quiet(ctx, changed, wait, admin.Scope{})
}

// Thaw ends a freeze, and reports whether there was one. Lanes and pods that were drained stay drained, a paused gate stays closed.
func (a Admin) Thaw(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Freeze(ctx, a.pod.Commands, false, named(actor))
	return changed, a.operated(ctx, err)
}
