package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// wakesApart is the least time between two sweeps that notifications cause, and between two notifications that we send:
// a storm of them is one look.
const MinWakeInterval = 50 * time.Millisecond

// beat renews the pod's lease until ctx ends.
func (r *Engine) beat(ctx context.Context) {
	ticker := time.NewTicker(r.Opts.HeartbeatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.BeatOnce(ctx, true)
		case <-r.reread:
			// Out of turn: however many come, they neither hurry the judgement of others nor crowd the database.
			if r.BeatOnce(ctx, false); !wait.For(ctx, MinWakeInterval) {
				return
			}
		}
	}
}

// readSettings asks for a heartbeat now, which reads the settings of lanes, pods and the gate.
func (r *Engine) ReadSettings() { r.reread.Set() }

// beatOnce renews the lease and takes what the answer tells. Only a beat in its turn counts for the right to judge others.
func (r *Engine) BeatOnce(ctx context.Context, counts bool) {
	_ = failpoint.Hit(failpoint.HeartbeatSend)
	if !r.Lease.Registered() {
		if err := r.Member.Open(ctx); err != nil {
			r.Damped.Warn(ctx, notRegistered, telemetry.Err, r.DBError(err))
			return
		}
		r.Damped.Over(ctx, notRegistered)
		r.Damped.Over(ctx, heartbeatFailed)
		r.Log.InfoContext(ctx, "pod registered again", telemetry.Pod, r.Opts.Name, telemetry.Boot, r.Boot())
		r.Wake()
		return
	}
	sent := time.Now()
	// A heartbeat that takes longer than this is worth less than the next one on a fresh connection.
	asking, cancel := context.WithTimeout(ctx, max(r.Opts.HeartbeatEvery, r.Opts.LeaseFor/3))
	defer cancel()
	boot := r.Boot()
	b, err := r.Member.Heartbeat(asking, boot)
	if err != nil {
		r.Lease.missed()
		r.Doubt.Raise() // the server that answers next may lack the latest commits
		if ctx.Err() == nil {
			r.Damped.Warn(ctx, heartbeatFailed, telemetry.Err, r.DBError(err))
		}
		return
	}
	r.Damped.Over(ctx, heartbeatFailed)
	if !b.Open {
		r.Member.LeaseLost(ctx)
		return
	}
	if r.Lease.beaten(sent, b.Now, b.Left, counts) {
		r.Log.InfoContext(ctx, "pod trusts its lease again", telemetry.Pod, r.Opts.Name)
		r.Wake()
	}
	r.told(b)
	r.Following.told(sent)
}

// told takes what a heartbeat told.
func (r *Engine) told(b store.Beat) {
	r.HeedHistory(b.History)
	if r.Lanes.Apply(b) {
		r.Wake()
	}
	r.Poller.SetEvery(r.Lanes.Interval())
	if r.Lanes.ApplyStale(b.Lanes) {
		r.Runs.Each(func(one *Run) { one.watchdog.Limit(r.staleAfter(one)) })
	}
	r.Member.Apply(b)
	for _, c := range b.Cancels {
		if one := r.Runs.Find(c.JobID, c.Fence); one != nil {
			r.cancelRun(one, c.Reason)
		}
	}
	if r.Doubt.Due() {
		r.Wake()
	}
	r.compareSoon()
}

// cancelRun ends a handler's context on behalf of an operator, or because its job is too old. After a stop the job has ended
// already; one that is too old has too, unless a transaction of the handler held its row.
func (r *Engine) cancelRun(one *Run, why job.Reason) {
	switch why {
	case job.ReasonStopped:
		one.losing.Do(func() {
			close(one.lost)
			one.cancel(job.ErrStopped)
		})
	case job.ReasonDeadline:
		one.cancel(job.ErrDeadline)
	default:
		one.cancel(job.ErrCancelled)
	}
}

// tellRun ends the handler of a run of ours whose row a transaction holds: it ends with the handler's context.
func (r *Engine) TellRun(l job.Lease) {
	if one := r.Runs.Find(l.JobID, l.Fence); one != nil && one.Lease == l {
		r.cancelRun(one, job.ReasonCancelled)
	}
}

// watchTrust cancels the handlers and calls over when the pod has not reached the database for so long that the others may take over. Results
// that handlers have returned by then are still written once the database is back, unless the lease is lost.
func (e *Engine) WatchTrust(ctx context.Context, over func()) {
	for {
		left, open := e.Lease.left()
		if open && left <= 0 {
			e.Log.WarnContext(ctx, "trust in the lease is over: handlers are cancelled", telemetry.Pod, e.Opts.Name)
			e.Runs.Each(func(one *Run) {
				if !one.kind.KeepRunning && !one.Settled.Load() {
					one.cancel(job.ErrLeaseLost)
				}
			})
			over()
		}
		var timer <-chan time.Time
		if open && left > 0 {
			timer = time.After(left)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.Lease.change:
		case <-timer:
		}
	}
}

// reserveFor reserves a slot for a job that is about to be inserted, if it may be born running here, and tells for which
// boot id.
func (r *Engine) reserveFor(kind, lane string, delayMillis int64) (boot string, reserved bool) {
	boot = r.Lease.id()
	// Trust first: what Run fixes, such as mine, is only then to be read.
	if delayMillis > 0 || r.Closing.Load() || !r.Lease.Trusted() || !r.Handled[kind] {
		return boot, false
	}
	return boot, r.Lanes.Reserve(lane)
}
