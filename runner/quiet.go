package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// quietEvery is how often it is looked whether something still runs.
const quietEvery = 50 * time.Millisecond

// heardBy is which pods have heard of a command that was committed before the first look. A heartbeat that was under way then may
// not have seen it; the next one has: so a pod has heard when the end of its lease has changed twice. It has taken the answer in, and
// what it sent before is over, by the look after that.
type heardBy map[string]*hearing

type hearing struct {
	until string
	times int
}

// took takes a look, and reports whether every pod in it had heard by the one before.
func (h heardBy) took(leases map[string]string) (all bool) {
	all = true
	for boot, until := range leases {
		one := h[boot]
		if one == nil {
			one = &hearing{until: until}
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

// quiet tells what still runs where nothing is to start any more; for at most so long it waits until nothing does, and nothing can.
func (a Admin) quiet(ctx context.Context, changed bool, atMost time.Duration, of admin.Scope) (q job.Quiet, err error) {
	q.Changed = changed
	heard := heardBy{}
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
		if !all && !a.pod.Deaf() {
			_ = a.pod.Commands.NotifySettings(ctx, a.pod.Commands.Pool()) // a hint: they beat their hearts now
		}
		// Counting may be slow over a large backlog: it is not to be what the database does.
		pause := max(quietEvery, 10*time.Since(asked))
		if !wait.For(ctx, min(pause, max(atMost-time.Since(began), time.Millisecond))) {
			return q, ctx.Err()
		}
	}
}
