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

// podLeases tracks which pods have applied a command that was committed before the first poll. A heartbeat that was in flight at that time
// may have missed the command, but the next heartbeat reads it. A pod has therefore applied the command once its lease expiry has changed
// twice. The poll after that sees the results of everything the pod sent before it applied the command.
type podLeases map[string]*leaseEnd

type leaseEnd struct {
	until string
	times int
}

// took records the leases read by one poll. It reports whether every pod had applied the command by the time of the previous poll.
func (h podLeases) took(leases map[string]string) (all bool) {
	all = true
	for boot, until := range leases {
		one := h[boot]
		if one == nil {
			one = &leaseEnd{until: until}
			h[boot] = one
		}
		all = all && one.times >= 2
		if one.until != until {
			one.until = until
			one.times++
		}
	}
	return all
}

// quiet polls for running jobs in a scope in which no new job may start. It waits up to atMost, until no job is running and none can start.
func (a Admin) quiet(ctx context.Context, changed bool, atMost time.Duration, of admin.Scope) (q job.Quiet, err error) {
	q.Changed = changed
	heard := podLeases{}
	for began := time.Now(); ; {
		asked := time.Now()
		running, leases, err := admin.Running(ctx, a.pod.Commands, of)
		if err != nil {
			return q, a.pod.DBError(err)
		}
		all := heard.took(leases)
		q.Running, q.Quiet = running, running == 0 && all
		if q.Quiet || atMost <= 0 {
			return q, nil
		}
		if time.Since(began) >= atMost {
			q.TimedOut = true
			return q, nil
		}
		if !all && !a.pod.NotificationsDisabled() {
			_ = a.pod.Commands.NotifySettings(ctx, a.pod.Commands.Pool()) // best effort: makes the pods send a heartbeat now
		}
		// Counting can be slow with a large backlog, so spend at most a tenth of the time on it.
		pause := max(idlePollInterval, 10*time.Since(asked))
		if !wait.For(ctx, min(pause, max(atMost-time.Since(began), time.Millisecond))) {
			return q, ctx.Err()
		}
	}
}
