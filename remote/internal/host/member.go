package host

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// member is the engine's view of a remote worker: it manages the worker's row, which belongs to the session until the worker opens a newer
// stream.
type member struct{ *Session }

// Open always fails. A worker whose row was closed opens a new row with a new ID.
func (m member) Open(context.Context) error { return ErrClosed }

// Heartbeat renews the lease only if the worker has sent a heartbeat since the last call.
func (m member) Heartbeat(ctx context.Context, podID string) (store.Beat, error) {
	heard := m.heard.Swap(false)
	b, err := store.WorkerHeartbeat(ctx, m.host.pod.RemoteStore, podID, m.host.pod.Opts.LeaseDuration, m.engine.Closing.Load(), m.stream, heard)
	switch {
	case err != nil && heard:
		m.heard.Store(true)
	case err == nil && b.Open:
		m.checkUnheard()
	}
	return b, err
}

// Apply nudges the worker if an operator has requested handler stacks. The worker learns of the request from the response to its heartbeat.
func (m member) Apply(b store.Beat) {
	stacks := stacksRequested(b)
	m.mu.Lock()
	m.stacks = stacks
	m.mu.Unlock()
	if len(stacks) > 0 && m.opts.Nudge != nil {
		m.opts.Nudge()
	}
}

// stacksRequested returns the claims whose handler stacks were requested according to b.
func stacksRequested(b store.Beat) map[engine.ClaimKey]bool {
	var stacks map[engine.ClaimKey]bool
	for _, r := range b.Requests {
		if r.What != store.RequestStack {
			continue
		}
		if stacks == nil {
			stacks = map[engine.ClaimKey]bool{}
		}
		stacks[engine.ClaimKey{ID: r.JobID, Fence: r.Fence}] = true
	}
	return stacks
}

// LeaseLost ends a session whose row was closed or whose worker has opened another stream.
func (m member) LeaseLost(ctx context.Context) {
	why := ErrSuperseded // also the default if the row cannot be read, because the worker opens another stream in response
	if row, err := store.Worker(ctx, m.host.pod.RemoteStore, m.opts.ID); err == nil && !row.Open || errors.Is(err, job.ErrNotFound) {
		why = ErrClosed
		if !row.Left {
			m.host.pod.Metrics.LeasesLost.Inc()
		}
	}
	m.host.pod.Log.WarnContext(ctx, "this pod no longer serves a remote worker", telemetry.Pod, m.opts.Name, telemetry.PodID, m.opts.ID, telemetry.Why, why)
	m.finish(why)
}

func (m member) HistoryChanged() {}

// WakePeers wakes the pod and its other sessions. It works even if notifications are disabled.
func (m member) WakePeers() {
	m.host.pod.Wake()
	m.host.pod.WakePeers()
}

func (m member) Escalate() { m.host.pod.Member.Escalate() }

func (m member) Cancel(claim job.Lease, why job.Reason) { m.host.pod.Member.Cancel(claim, why) }

func (m member) Claims(ctx context.Context, podID string) (held []store.Held, ok bool, err error) {
	if !m.current(ctx) {
		return nil, false, nil
	}
	if held, err = m.host.adoptions.Do(ctx, podID); err != nil {
		return nil, false, err
	}
	ok, err = m.serves(ctx) // a newer stream may have opened the row before the lease was lost
	return held, ok, err
}

func (m member) ClaimMissing(run *engine.Run) bool {
	m.release(run.Key())
	return true
}

func (m member) ClaimsCompared(context.Context) {}

// MarkLimit returns the pod's poll interval and a function that wakes all sessions. Sessions poll more often than the pod does, but
// sessions whose workers handle the same kinds share their low-water marks.
func (m member) MarkLimit() (time.Duration, func()) {
	return m.host.pod.Opts.PollInterval, func() { m.host.Each(func(e *engine.Engine) { e.Wake() }) }
}

// current reports whether the session still serves its worker. If the row cannot be read, it returns true.
func (g *Session) current(ctx context.Context) bool {
	serves, err := g.serves(ctx)
	return err != nil || serves
}

func (g *Session) serves(ctx context.Context) (bool, error) {
	row, err := store.Worker(ctx, g.host.pod.RemoteStore, g.opts.ID)
	return err == nil && row.Open && row.Stream == g.stream, err
}
