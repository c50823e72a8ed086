package host

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wake"
	"github.com/trapeze-run/trapeze/job"
)

// A Session implements the member of its engine. It manages the row of a remote worker, which belongs to the session until the worker opens
// a newer stream.

// Open always fails. A worker whose row was closed opens a new row with a new ID.
func (g *Session) Open(context.Context) error { return ErrClosed }

// Heartbeat renews the lease only if the worker has sent a heartbeat since the last call.
func (g *Session) Heartbeat(ctx context.Context, boot string) (store.Beat, error) {
	heard := g.heard.Swap(false)
	b, err := store.WorkerHeartbeat(ctx, g.host.pod.RemoteStore, boot, g.host.pod.Opts.LeaseFor, g.engine.Closing.Load(), g.stream, heard)
	switch {
	case err != nil && heard:
		g.heard.Store(true)
	case err == nil && b.Open:
		g.checkUnheard()
	}
	return b, err
}

// Apply nudges the worker if an operator asks for the stacks of handlers, which the worker learns from the response to its heartbeat.
func (g *Session) Apply(b store.Beat) {
	stacks := stacksRequested(b)
	g.mu.Lock()
	g.stacks = stacks
	g.mu.Unlock()
	if len(stacks) > 0 && g.opts.Nudge != nil {
		g.opts.Nudge()
	}
}

// stacksRequested returns the claims for which a heartbeat delivered a request for the handler's stack.
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

// LeaseLost ends a session whose row was closed, or whose worker has opened another stream.
func (g *Session) LeaseLost(ctx context.Context) {
	why := ErrSuperseded // also used if the row cannot be read, because the worker then opens another stream too
	if row, err := store.Worker(ctx, g.host.pod.RemoteStore, g.opts.ID); err == nil && !row.Open || errors.Is(err, job.ErrNotFound) {
		why = ErrClosed
		g.host.pod.Metrics.LeasesLost.Inc()
	}
	g.host.pod.Log.WarnContext(ctx, "remote worker moved to another pod", telemetry.Pod, g.opts.Name, telemetry.Boot, g.opts.ID, telemetry.Why, why)
	g.finish(why)
}

func (g *Session) HistoryChanged() {}

// WakePeers wakes the pod and its other sessions. It works even if notifications are disabled.
func (g *Session) WakePeers() {
	g.host.pod.Wake()
	g.host.pod.WakePeers()
}

func (g *Session) PassOn(u wake.Up) { g.host.pod.Member.PassOn(u) }

func (g *Session) Cancel(claim job.Lease, why job.Reason) { g.host.pod.Member.Cancel(claim, why) }

func (g *Session) Claims(ctx context.Context, boot string) (held []store.Held, ok bool, err error) {
	if !g.current(ctx) {
		return nil, false, nil
	}
	if held, err = g.host.adoptions.Do(ctx, boot); err != nil {
		return nil, false, err
	}
	ok, err = g.serves(ctx) // a newer stream may have opened the row before the lease was lost
	return held, ok, err
}

func (g *Session) ClaimMissing(one *engine.Run) bool {
	g.release(one.Key())
	return true
}

func (g *Session) ClaimsCompared(context.Context) {}

// MarkLimit returns the pod's poll interval and a function that wakes all sessions. Remote workers poll more often, but workers with the
// same kinds share their low-water marks.
func (g *Session) MarkLimit() (time.Duration, func()) {
	return g.host.pod.Opts.PollEvery, func() { g.host.Each(func(e *engine.Engine) { e.Wake() }) }
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
