package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// podMember is the member for the pod's engine. It manages the pod's row in the table of pods, and the remote workers that the pod serves.
type podMember struct{ p *Pod }

func (m podMember) Open(ctx context.Context) error { return m.p.register(ctx) }

func (m podMember) Heartbeat(ctx context.Context, podID string) (store.Beat, error) {
	sent := time.Now()
	b, err := m.p.Heartbeats.Heartbeat(ctx, podID, m.p.opts.LeaseDuration, m.p.Closing.Load(), m.p.scheduledKinds()...)
	if err == nil {
		m.p.watchClock(ctx, sent, b.Now)
	}
	return b, err
}

func (m podMember) Apply(b store.Beat) {
	m.p.ApplyBeat(b)
	m.p.Submitter.Apply(b.Now, b.NextFire)
	if m.p.Lanes.LostOne(strandedFor) {
		m.p.maintenance.MoveStranded()
	}
	m.p.listener.needsAll(m.p.hearsAll())
	if b.OffBalance {
		m.p.Unsettled.CheckAll()
	}
}

// LeaseLost makes this pod rejoin the fleet under a new pod ID, because other pods have declared the old one dead and recovered its jobs.
func (m podMember) LeaseLost(ctx context.Context) {
	p := m.p
	old := p.LoseLease()
	p.Metrics.LeasesLost.Inc()
	p.Log.WarnContext(ctx, "lease lost: the pod lapsed and its jobs were recovered", telemetry.Pod, p.opts.Name, telemetry.PodID, old)
	p.BeatOnce(ctx, true)
}

func (m podMember) HistoryChanged() {
	m.p.Metrics.HistoryChanges.Inc()
	m.p.Log.Warn("the database's history has changed: a standby was promoted or a backup restored, and the latest commits may be missing",
		telemetry.Pod, m.p.opts.Name, telemetry.PodID, m.p.PodID())
	m.p.Feed.Wake()
}

func (m podMember) WakePeers() { m.p.notifyOthers() }

func (m podMember) Escalate() { m.p.notify(m.p.all) }

func (m podMember) Cancel(claim job.Lease, why job.Reason) {
	if outbox.IsEngine(claim.Pod) {
		m.p.laneEngines.wake()
		return
	}
	m.p.CancelClaim(claim, why)
	if e := m.p.sessions().Engine(claim.Pod); e != nil {
		e.CancelClaim(claim, why)
	}
}

func (m podMember) Claims(ctx context.Context, podID string) ([]store.Held, bool, error) {
	held, err := m.p.Store.Held(ctx, podID)
	return held, true, err
}

func (podMember) ClaimMissing(*engine.Run) bool { return false }

// ClaimsCompared searches for orphaned claims, including those of the pod's remote workers. For doctor, it also records how many claims the
// pod knows.
func (m podMember) ClaimsCompared(ctx context.Context) {
	if m.p.pass.due() {
		if err := m.p.findOrphaned(ctx); err != nil {
			m.p.Log.DebugContext(ctx, "could not search for orphaned claims, retrying with the next heartbeat", telemetry.Err, m.p.DBError(err))
		}
	}
	m.p.known.report(ctx, m.p.Engine)
}

func (m podMember) MarkLimit() (time.Duration, func()) { return m.p.opts.PollInterval, m.p.Wake }

// errClosedAtOnce means that another pod closed this pod's row before the first heartbeat, which can happen if the process was frozen or
// starved.
var errClosedAtOnce = errors.New("pod row closed before the first heartbeat")

// register opens the pod's row and applies the response to the first heartbeat.
func (p *Pod) register(ctx context.Context) error {
	sent := time.Now()
	info := store.PodInfo{PodID: p.PodID(), Name: p.opts.Name, Version: p.opts.Version, Kinds: p.HandledKinds, Slots: p.Slots(), Limits: p.Limits(), Engines: p.laneEngines.names(), Before: p.Lease.PreviousID()}
	if err := p.Heartbeats.Register(ctx, info, p.opts.LeaseDuration); err != nil {
		return err
	}
	b, err := podMember{p}.Heartbeat(ctx, info.PodID)
	if err != nil {
		return err
	}
	if !b.Open {
		p.Lease.NewBoot() // a closed row never reopens, so the next attempt uses a new one
		return fmt.Errorf("register pod %s: %w", info.PodID, errClosedAtOnce)
	}
	p.FirstBeat(sent, b)
	return nil
}

func (p *Pod) checkSchema(ctx context.Context) error {
	return schema.Check(ctx, p.Heartbeats.Pool(), p.opts.Schema)
}
