package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// podMember is the pod as the [member] of its engine: its row in the table of pods, and the remote workers that it serves.
type podMember struct{ r *Runner }

func (p podMember) open(ctx context.Context) error { return p.r.register(ctx) }

func (p podMember) heartbeat(ctx context.Context, boot string) (store.Beat, error) {
	return p.r.heart.Heartbeat(ctx, boot, p.r.opts.LeaseFor, p.r.closing.Load(), p.r.scheduledKinds()...)
}

func (p podMember) apply(b store.Beat) {
	p.r.due.told(b)
	p.r.calendar.Apply(b.Now, b.NextFire)
	if p.r.lanes.LostOne(strandedFor) {
		p.r.maintenance.MoveStranded()
	}
	p.r.poller.Nudge()
	if b.OffBalance {
		p.r.unbalanced.lookAround()
	}
}

// leaseLost starts over as a new pod: others have declared this one dead, and its jobs are theirs.
func (p podMember) leaseLost(ctx context.Context) {
	r := p.r
	old := r.pod.renew()
	r.lanes.DropGrants()
	r.metrics.LeasesLost.Inc()
	r.log.WarnContext(ctx, "lease lost: the pod lapsed and its jobs were recovered", telemetry.Pod, r.opts.Name, telemetry.Boot, old)
	r.runs.each(func(one *run) {
		if one.Lease.Pod == old {
			one.lose(job.ErrLeaseLost)
		}
	})
	r.beatOnce(ctx, true)
}

func (p podMember) historyChanged() {
	p.r.metrics.HistoryChanges.Inc()
	p.r.log.Warn("the database's history has changed: a standby was promoted or a backup restored, and its latest commits may be missing",
		telemetry.Pod, p.r.opts.Name, telemetry.Boot, p.r.boot())
	p.r.feed.Wake()
}

func (p podMember) wakePeers() { p.r.notifyOthers() }

func (p podMember) cancel(claim job.Lease, why job.Reason) {
	if one := p.r.runs.find(claim.JobID, claim.Fence); one != nil && one.Lease.Pod == claim.Pod {
		p.r.cancelRun(one, why)
	}
	p.r.guests.tell(claim, why)
}

func (p podMember) given(ctx context.Context, boot string) ([]store.Held, bool, error) {
	held, err := p.r.store.Held(ctx, boot)
	return held, true, err
}

func (podMember) claimMissing(*run) bool { return false }

// claimsCompared searches orphaned claims, of the pod's remote workers too, and notes for doctor how many claims the pod knows.
func (p podMember) claimsCompared(ctx context.Context) {
	if p.r.pass.due() {
		if err := p.r.findOrphaned(ctx); err != nil {
			p.r.log.DebugContext(ctx, "orphaned claims could not be looked for, the next heartbeat tries again", telemetry.Err, p.r.dbError(err))
		}
	}
	p.r.known.report(ctx, p.r)
}

func (p podMember) markLimit() (time.Duration, func()) { return p.r.opts.PollEvery, p.r.wake }
