package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// idlePollInterval is the minimum interval at which drain and freeze re-check for running jobs.
const idlePollInterval = 50 * time.Millisecond

// quiet polls for running jobs in a scope in which no new job may start. It waits up to atMost, until no job is running and none can start.
func (a Admin) quiet(ctx context.Context, changed bool, atMost time.Duration, of admin.Scope) (q job.Quiet, err error) {
	q.Changed = changed
	heard := admin.Heard{}
	for began := time.Now(); ; {
		asked := time.Now()
		running, leases, err := admin.Running(ctx, a.pod.Commands, of)
		if err != nil {
			return q, a.pod.DBError(err)
		}
		all := heard.Took(leases) == 0
		q.Running, q.Quiet = running, running == 0 && all
		if q.Quiet || atMost <= 0 {
			return q, nil
		}
		if time.Since(began) >= atMost {
			q.TimedOut = true
			return q, nil
		}
		if !a.rest(ctx, !all, asked, atMost-time.Since(began)) {
			return q, ctx.Err()
		}
	}
}

// rest waits between two polls, at most for left. hurry makes the pods send heartbeats. It returns false if ctx has ended.
func (a Admin) rest(ctx context.Context, hurry bool, asked time.Time, left time.Duration) bool {
	if hurry && !a.pod.NotificationsDisabled() {
		_ = a.pod.Commands.NotifySettings(ctx, a.pod.Commands.Pool()) // best effort: makes the pods send a heartbeat now
	}
	// Counting can be slow with a large backlog, so spend at most a tenth of the time on it.
	return wait.For(ctx, min(max(idlePollInterval, 10*time.Since(asked)), max(left, time.Millisecond)))
}
