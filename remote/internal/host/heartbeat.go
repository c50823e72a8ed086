package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Beat is a remote worker's heartbeat.
type Beat struct {
	Running  []Listed
	Draining bool // the worker is about to stop
	Leaving  bool // the worker is stopping now
}

// Listed is a claim that a remote worker lists as running in a heartbeat.
type Listed struct {
	Claim
	Progress *job.Progress // progress since the last heartbeat; nil if there is none
}

// Verdict is the pod's answer about a claim that a remote worker listed.
type Verdict struct {
	ID, Fence int64
	Cause     error // why to cancel the handler's context; nil if the handler may continue
	Lost      bool  // the worker no longer holds the claim
	Stack     bool  // an operator has requested the handler's stack
}

// Heartbeat handles a remote worker's heartbeat, which may arrive on any pod, and returns a verdict for each listed claim. It returns
// [ErrClosed] if the worker's row is closed.
func (h *Host) Heartbeat(ctx context.Context, id, owner string, b Beat) ([]Verdict, error) {
	g := h.find(id)
	if g == nil {
		return h.heartbeatElsewhere(ctx, id, owner, b)
	}
	if g.opts.Owner != owner {
		return nil, fmt.Errorf("heartbeat of worker %s: %w", id, ErrClosed)
	}
	select {
	case <-g.over:
		return h.heartbeatElsewhere(ctx, id, owner, b)
	default:
	}
	g.heard.Store(true)
	if b.Draining || b.Leaving {
		g.engine.StopClaims()
		g.stop()
	}
	now := time.Now()
	list, err := g.verdicts(ctx, owner, b.Running, now)
	if err != nil {
		return nil, err
	}
	g.checkUnlisted(now)
	if b.Leaving {
		return list, g.leave(ctx)
	}
	return list, nil
}

// storableProgress returns p with a message that PostgreSQL can store.
func storableProgress(p job.Progress) job.Progress {
	if p.Message != nil {
		text := job.Storable(*p.Message, 500)
		p.Message = &text
	}
	return p
}

// leave closes a stopping worker's row, which also triggers the recovery of claims that the worker has not reported.
func (g *Session) leave(ctx context.Context) error {
	g.engine.Runs.WaitEmpty(g.host.pod.Opts.LeaseDuration/4, nil)
	if err := g.host.pod.RemoteStore.Leave(ctx, g.opts.ID); err != nil {
		return g.host.pod.DBError(err)
	}
	g.finish(nil)
	if lanes, err := store.VoidSlots(ctx, g.host.pod.RemoteStore, []string{g.opts.ID}); err == nil && len(lanes) > 0 {
		g.host.pod.WakePeers()
	}
	return nil
}

// heartbeatElsewhere handles the heartbeat of a worker whose stream is served by another pod or not at all. It uses the lease in the
// worker's row instead of a stream's lease.
func (h *Host) heartbeatElsewhere(ctx context.Context, id, owner string, b Beat) ([]Verdict, error) {
	row, beat, err := h.renewWorker(ctx, id, owner, b.Draining || b.Leaving)
	if err != nil {
		return nil, err
	}
	var leases []job.Lease
	for _, l := range b.Running {
		if validToken(row.Key, id, l.Claim) {
			leases = append(leases, job.Lease{JobID: l.ID, Fence: l.Fence, Pod: id})
		}
	}
	held, err := store.ClaimsToAdopt(ctx, h.pod.RemoteStore, id, leases)
	if err != nil {
		return nil, h.pod.DBError(err)
	}
	known := map[engine.ClaimKey]store.Adopted{}
	leases = leases[:0]
	for _, h := range held {
		known[engine.ClaimKey{ID: h.ID, Fence: h.Fence}] = h
		leases = append(leases, job.Lease{JobID: h.ID, Fence: h.Fence, Pod: id})
	}
	if err := store.Acknowledge(ctx, h.pod.RemoteStore, id, leases); err != nil {
		return nil, h.pod.DBError(err)
	}
	list, stacks := make([]Verdict, len(b.Running)), stacksRequested(beat)
	for i, l := range b.Running {
		mine, ok := known[engine.ClaimKey{ID: l.ID, Fence: l.Fence}]
		list[i] = Verdict{ID: l.ID, Fence: l.Fence, Lost: !ok, Stack: ok && stacks[engine.ClaimKey{ID: l.ID, Fence: l.Fence}]}
		switch {
		case !ok:
			list[i].Cause = job.ErrLeaseLost
		case mine.CancelRequested:
			list[i].Cause = job.ErrCancelled
		case l.Progress != nil:
			_ = h.pod.RemoteStore.Progress(ctx, job.Lease{JobID: l.ID, Fence: l.Fence, Pod: id}, storableProgress(*l.Progress)) // best effort
		}
	}
	if b.Leaving {
		return list, h.pod.DBError(h.pod.RemoteStore.Leave(ctx, id))
	}
	return list, nil
}

// renewWorker renews a worker's lease, no matter which pod serves its stream.
func (h *Host) renewWorker(ctx context.Context, id, owner string, draining bool) (store.WorkerRow, store.Beat, error) {
	for {
		row, err := h.workerRow(ctx, id, owner)
		if err != nil {
			return row, store.Beat{}, err
		}
		if !row.Open {
			return row, store.Beat{}, fmt.Errorf("heartbeat of worker %s: %w", id, ErrClosed)
		}
		beat, err := store.WorkerHeartbeat(ctx, h.pod.RemoteStore, id, h.pod.Opts.LeaseDuration, draining, row.Stream, true)
		if err != nil {
			return row, beat, h.pod.DBError(err)
		}
		if beat.Open {
			return row, beat, nil
		}
		// Either the row was closed, or the worker has opened another stream. The next iteration reads the row to find out which.
	}
}

// workerRow returns a worker's row, open or closed. It returns [ErrClosed] if there is none or it belongs to another principal.
func (h *Host) workerRow(ctx context.Context, id, owner string) (store.WorkerRow, error) {
	if !isWorker(id) {
		return store.WorkerRow{}, fmt.Errorf("%w: invalid worker id %q", job.ErrInvalid, job.Storable(id, 50))
	}
	row, err := store.Worker(ctx, h.pod.RemoteStore, id)
	switch {
	case errors.Is(err, job.ErrNotFound):
	case err != nil:
		return row, h.pod.DBError(err)
	case row.Owner == owner:
		return row, nil
	}
	return row, fmt.Errorf("worker %s: %w", id, ErrClosed)
}
