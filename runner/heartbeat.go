package runner

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
const wakesApart = 50 * time.Millisecond

// beat renews the pod's lease until ctx ends.
func (r *engine) beat(ctx context.Context) {
	ticker := time.NewTicker(r.opts.HeartbeatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.beatOnce(ctx, true)
		case <-r.reread:
			// Out of turn: however many come, they neither hurry the judgement of others nor crowd the database.
			if r.beatOnce(ctx, false); !wait.For(ctx, wakesApart) {
				return
			}
		}
	}
}

// readSettings asks for a heartbeat now, which reads the settings of lanes, pods and the gate.
func (r *engine) readSettings() { r.reread.Set() }

// beatOnce renews the lease and takes what the answer tells. Only a beat in its turn counts for the right to judge others.
func (r *engine) beatOnce(ctx context.Context, counts bool) {
	_ = failpoint.Hit(failpoint.HeartbeatSend)
	if !r.lease.registered() {
		if err := r.member.Open(ctx); err != nil {
			r.damped.warn(ctx, notRegistered, telemetry.Err, r.dbError(err))
			return
		}
		r.damped.over(ctx, notRegistered)
		r.damped.over(ctx, heartbeatFailed)
		r.log.InfoContext(ctx, "pod registered again", telemetry.Pod, r.opts.Name, telemetry.Boot, r.boot())
		r.wake()
		return
	}
	sent := time.Now()
	// A heartbeat that takes longer than this is worth less than the next one on a fresh connection.
	asking, cancel := context.WithTimeout(ctx, max(r.opts.HeartbeatEvery, r.opts.LeaseFor/3))
	defer cancel()
	boot := r.boot()
	b, err := r.member.Heartbeat(asking, boot)
	if err != nil {
		r.lease.missed()
		r.doubt.raise() // the server that answers next may lack the latest commits
		if ctx.Err() == nil {
			r.damped.warn(ctx, heartbeatFailed, telemetry.Err, r.dbError(err))
		}
		return
	}
	r.damped.over(ctx, heartbeatFailed)
	if !b.Open {
		r.member.LeaseLost(ctx)
		return
	}
	if r.lease.beaten(sent, b.Now, b.Left, counts) {
		r.log.InfoContext(ctx, "pod trusts its lease again", telemetry.Pod, r.opts.Name)
		r.wake()
	}
	r.told(b)
	r.following.told(sent)
}

// told takes what a heartbeat told.
func (r *engine) told(b store.Beat) {
	r.heedHistory(b.History)
	if r.lanes.Apply(b) {
		r.wake()
	}
	r.poller.SetEvery(r.lanes.Interval())
	if r.lanes.ApplyStale(b.Lanes) {
		r.runs.each(func(one *run) { one.pulse.watch(r.staleAfter(one)) })
	}
	r.member.Apply(b)
	for _, c := range b.Cancels {
		if one := r.runs.find(c.JobID, c.Fence); one != nil {
			r.cancelRun(one, c.Reason)
		}
	}
	if r.doubt.due() {
		r.wake()
	}
	r.compareSoon()
}

// cancelRun ends a handler's context on behalf of an operator, or because its job is too old. After a stop the job has ended
// already; one that is too old has too, unless a transaction of the handler held its row.
func (r *engine) cancelRun(one *run, why job.Reason) {
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
func (r *engine) tellRun(l job.Lease) {
	if one := r.runs.find(l.JobID, l.Fence); one != nil && one.Lease == l {
		r.cancelRun(one, job.ReasonCancelled)
	}
}

// watchTrust cancels the handlers and calls over when the pod has not reached the database for so long that the others may take over. Results
// that handlers have returned by then are still written once the database is back, unless the lease is lost.
func (e *engine) watchTrust(ctx context.Context, over func()) {
	for {
		left, open := e.lease.left()
		if open && left <= 0 {
			e.log.WarnContext(ctx, "trust in the lease is over: handlers are cancelled", telemetry.Pod, e.opts.Name)
			e.runs.each(func(one *run) {
				if !one.kind.keepRunning && !one.settled.Load() {
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
		case <-e.lease.change:
		case <-timer:
		}
	}
}

// reserveFor reserves a slot for a job that is about to be inserted, if it may be born running here, and tells for which
// boot id.
func (r *engine) reserveFor(kind, lane string, delayMillis int64) (boot string, reserved bool) {
	boot = r.lease.id()
	// Trust first: what Run fixes, such as mine, is only then to be read.
	if delayMillis > 0 || r.closing.Load() || !r.lease.trusted() || !r.mine[kind] {
		return boot, false
	}
	return boot, r.lanes.Reserve(lane)
}
