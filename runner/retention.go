package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/job"
)

// Retentions lists the kinds that are kept for a time of their own; all others are kept as the pods say, by [Options].
func (r *Runner) Retentions(ctx context.Context) ([]job.Retention, error) {
	list, err := r.front.Retentions(ctx)
	return list, r.dbError(err)
}

// SetRetention says for how long the jobs of a kind are kept that ended in a state (seconds; 0: for ever), from the next round of the
// maintenance on. What is older then is gone, and nothing brings it back. The kind need not be known here. Error: [job.ErrInvalidSetting].
func (r *Runner) SetRetention(ctx context.Context, kind string, state job.State, keepS int64, actor string) (job.RetentionChanged, error) {
	done, err := r.front.SetRetention(ctx, kind, state, &keepS, by(actor))
	return done, r.operated(ctx, err)
}

// UnsetRetention lets a kind that ended in a state be kept as all others. Error: [job.ErrInvalidSetting].
func (r *Runner) UnsetRetention(ctx context.Context, kind string, state job.State, actor string) (job.RetentionChanged, error) {
	done, err := r.front.SetRetention(ctx, kind, state, nil, by(actor))
	return done, r.operated(ctx, err)
}
