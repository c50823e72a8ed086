package runner

import (
	"context"
	"time"
)

// FireAt decides what is due at a moment that the database's clock is said to show, on a runner that need not run.
func (r *Runner) FireAt(ctx context.Context, at time.Time) {
	r.pod.Calendar.FireDue(ctx, &at)
}
