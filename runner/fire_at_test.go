package runner

import (
	"context"
	"time"
)

// FireAt fires the schedules that are due at the given time. The runner need not be running.
func (r *Runner) FireAt(ctx context.Context, at time.Time) {
	r.pod.Submitter.FireDue(ctx, &at)
}
