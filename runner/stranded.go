package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// strandedFor is for how long after a lane was deleted its jobs are looked for at each heartbeat: those of transactions that committed
// later, and those that ran and come back. After that it is the maintenance that looks, by the minute.
const strandedFor = 5 * time.Minute

// keepStranded moves jobs of lanes that do not exist when there may be some, until ctx ends. What cannot be done now is tried again at the
// next heartbeat.
func (r *Runner) keepStranded(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.stranded:
		}
		if _, err := r.moveStranded(ctx); err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "jobs of a lane that was deleted could not be moved, the next heartbeat tries again", telemetry.Err, r.dbError(err))
		}
	}
}

// lookForStranded has jobs of deleted lanes be looked for, if one was deleted lately.
func (r *Runner) lookForStranded() {
	if r.lanes.lostOne(strandedFor) {
		r.stranded.Set()
	}
}

// lostOne reports whether a lane was deleted so lately, or one that was still has jobs here.
func (l *lanes) lostOne(lately time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost.IsZero() && time.Since(l.lost) < lately
}
