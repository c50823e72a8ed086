package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Retentions returns each kind's retention overrides. For all other kinds, the pods' [Options] apply.
func (a Admin) Retentions(ctx context.Context) ([]job.Retention, error) {
	list, err := admin.Retentions(ctx, a.pod.Commands)
	return list, a.pod.DBError(err)
}

// SetRetention sets how long a kind's jobs are kept after ending in a given state, in whole seconds; 0 keeps them forever, and nil removes
// the override. It takes effect at the next maintenance run, which permanently deletes older jobs. The kind need not be registered here.
// SetRetention returns [job.ErrInvalidSetting] if a value is invalid.
func (a Admin) SetRetention(ctx context.Context, kind string, state job.State, keep *time.Duration, actor string) (job.RetentionChanged, error) {
	done, err := admin.SetRetention(ctx, a.pod.Commands, kind, state, (*job.Seconds)(keep), named(actor))
	return done, a.finishCommand(ctx, err)
}
