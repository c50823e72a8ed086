package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Retentions returns the retention overrides of kinds. All other kinds are kept as the pods' [Options] set.
func (a Admin) Retentions(ctx context.Context) ([]job.Retention, error) {
	list, err := admin.Retentions(ctx, a.pod.Commands)
	return list, a.pod.DBError(err)
}

// SetRetention sets how long the jobs of a kind that ended in a state are kept, in whole seconds (0: for ever). It takes effect at the
// next run of the maintenance, which deletes older jobs for good. The kind need not be known here. Error: [job.ErrInvalidSetting].
func (a Admin) SetRetention(ctx context.Context, kind string, state job.State, keep time.Duration, actor string) (job.RetentionChanged, error) {
	done, err := admin.SetRetention(ctx, a.pod.Commands, kind, state, (*job.Seconds)(&keep), named(actor))
	return done, a.finishCommand(ctx, err)
}

// UnsetRetention removes the override for a kind and a state. Error: [job.ErrInvalidSetting].
func (a Admin) UnsetRetention(ctx context.Context, kind string, state job.State, actor string) (job.RetentionChanged, error) {
	done, err := admin.SetRetention(ctx, a.pod.Commands, kind, state, nil, named(actor))
	return done, a.finishCommand(ctx, err)
}
