package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Retentions lists the kinds that are kept for a time of their own; all others are kept as the pods say, by [Options].
func (a Admin) Retentions(ctx context.Context) ([]job.Retention, error) {
	list, err := admin.Retentions(ctx, a.pod.Commands)
	return list, a.pod.DBError(err)
}

// SetRetention keeps the jobs of a kind that ended in a state for a time of whole seconds (0: for ever), from the next round of the
// maintenance on. What is older then is gone, and nothing brings it back. The kind need not be known here. Error: [job.ErrInvalidSetting].
func (a Admin) SetRetention(ctx context.Context, kind string, state job.State, keep time.Duration, actor string) (job.RetentionChanged, error) {
	done, err := admin.SetRetention(ctx, a.pod.Commands, kind, state, (*job.Seconds)(&keep), named(actor))
	return done, a.operated(ctx, err)
}

// UnsetRetention lets a kind that ended in a state be kept as all others. Error: [job.ErrInvalidSetting].
func (a Admin) UnsetRetention(ctx context.Context, kind string, state job.State, actor string) (job.RetentionChanged, error) {
	done, err := admin.SetRetention(ctx, a.pod.Commands, kind, state, nil, named(actor))
	return done, a.operated(ctx, err)
}
