package admin

import (
	"context"
	"fmt"

	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// SetLimit changes the limit of one key, or of each key, in a lane or of a kind, and creates it if there is none. It takes effect on all pods at once. If it
// is higher, waiting jobs start as soon as slots are free. If it is lower, running jobs continue, and pending jobs beyond it wait again. An admission that is in
// progress at that moment may still use the old limit. SetLimit returns [job.ErrInvalidSetting] if a value is invalid, and [job.ErrUnknownLane] if there
// is no such lane. After another error, the limit may be saved without all jobs following it yet: repeat the call.
func (a Admin) SetLimit(ctx context.Context, c job.KeyLimitChange) (job.KeyLimitChanged, error) {
	done, err := statements.SetLimit(ctx, a.pod.Commands, c, a.actor)
	if err := a.finishCommand(ctx, err); err != nil {
		return done, err
	}
	held, lines, err := statements.ApplyLimit(ctx, a.pod.Commands, c.LimitOf)
	a.pod.LinesChanged(lines...)
	if done.Held = held; err != nil {
		return done, fmt.Errorf("limit saved, but not all jobs follow it yet: repeat the command: %w", a.pod.DBError(err))
	}
	return done, nil
}

// RemoveLimit removes a limit, as [Admin.SetLimit] does without any value. If there is none, it changes nothing.
func (a Admin) RemoveLimit(ctx context.Context, of job.LimitOf) (job.KeyLimitChanged, error) {
	return a.SetLimit(ctx, job.KeyLimitChange{LimitOf: of}.Whole())
}

// Limits lists the limits of keys by scope, name and key: those after the given one, at most limit. The default of limit is 50, its maximum 1000.
func (a Admin) Limits(ctx context.Context, f job.KeyLimitFilter, after job.LimitOf, limit int) ([]job.KeyLimit, error) {
	list, err := statements.Limits(ctx, a.pod.Commands, f, after, limit)
	return list, a.pod.DBError(err)
}

// KeysInUse lists the keys with the most waiting jobs, at most 100, with the number of places that each uses and the limit that binds. An empty lane, kind
// or key matches all.
func (a Admin) KeysInUse(ctx context.Context, lane, kind, key string) (job.KeysInUse, error) {
	use, err := view.KeysInUse(ctx, a.pod.Commands, lane, kind, key)
	return use, a.pod.DBError(err)
}
