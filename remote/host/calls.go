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

// Beat is a heartbeat of a remote worker.
type Beat struct {
	Running  []Listed
	Draining bool // it is about to stop
	Leaving  bool // it stops now
}

// Listed is a claim that a remote worker says it works on.
type Listed struct {
	Claim
	Progress *job.Progress // news; nil: none
}

// Verdict is what becomes of a claim that a remote worker listed.
type Verdict struct {
	ID, Fence int64
	Cause     error // with which its handler's context ends; nil: it goes on
	Lost      bool  // it is not the worker's any more
}

// Heartbeat takes a heartbeat of a remote worker in, on whichever pod it arrives, and tells what becomes of what it runs. Errors:
// [ErrClosed].
func (h *Host) Heartbeat(ctx context.Context, id, owner string, b Beat) ([]Verdict, error) {
	g := h.find(id)
	if g == nil {
		return h.heardElsewhere(ctx, id, owner, b)
	}
	if g.opts.Owner != owner {
		return nil, fmt.Errorf("heartbeat of worker %s: %w", id, ErrClosed)
	}
	select {
	case <-g.over:
		return h.heardElsewhere(ctx, id, owner, b)
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
	g.miss(now)
	if b.Leaving {
		return list, g.leave(ctx)
	}
	return list, nil
}

// cleaned is progress as it may be kept.
func cleaned(p job.Progress) job.Progress {
	if p.Message != nil {
		text := job.Storable(*p.Message, 500)
		p.Message = &text
	}
	return p
}

// leave closes the row of a worker that stops. What it has not reported is recovered, as the closed row says.
func (g *Session) leave(ctx context.Context) error {
	g.engine.Runs.WaitEmpty(g.host.pod.Opts.LeaseFor/4, nil)
	if err := g.host.pod.RemoteStore.Leave(ctx, g.opts.ID); err != nil {
		return g.host.pod.DBError(err)
	}
	g.finish(nil)
	if lanes, err := store.VoidSlots(ctx, g.host.pod.RemoteStore, []string{g.opts.ID}); err == nil && len(lanes) > 0 {
		g.host.pod.WakePeers()
	}
	return nil
}

// heardElsewhere takes in the heartbeat of a worker whose stream another pod serves, or none: its lease is the table's, not the stream's.
func (h *Host) heardElsewhere(ctx context.Context, id, owner string, b Beat) ([]Verdict, error) {
	row, err := h.renewWorker(ctx, id, owner, b.Draining || b.Leaving)
	if err != nil {
		return nil, err
	}
	var leases []job.Lease
	for _, l := range b.Running {
		if signed(row.Key, id, l.Claim) {
			leases = append(leases, job.Lease{JobID: l.ID, Fence: l.Fence, Pod: id})
		}
	}
	held, err := store.Adopt(ctx, h.pod.RemoteStore, id, leases)
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
	list := make([]Verdict, len(b.Running))
	for i, l := range b.Running {
		mine, ok := known[engine.ClaimKey{ID: l.ID, Fence: l.Fence}]
		list[i] = Verdict{ID: l.ID, Fence: l.Fence, Lost: !ok}
		switch {
		case !ok:
			list[i].Cause = job.ErrLeaseLost
		case mine.CancelRequested:
			list[i].Cause = job.ErrCancelled
		case l.Progress != nil:
			_ = h.pod.RemoteStore.Progress(ctx, job.Lease{JobID: l.ID, Fence: l.Fence, Pod: id}, cleaned(*l.Progress)) // only a note
		}
	}
	if b.Leaving {
		return list, h.pod.DBError(h.pod.RemoteStore.Leave(ctx, id))
	}
	return list, nil
}

// renewWorker renews the lease of a worker, whoever serves its stream.
func (h *Host) renewWorker(ctx context.Context, id, owner string, draining bool) (store.WorkerRow, error) {
	for {
		row, err := h.workerRow(ctx, id, owner)
		if err != nil {
			return row, err
		}
		if !row.Open {
			return row, fmt.Errorf("heartbeat of worker %s: %w", id, ErrClosed)
		}
		beat, err := store.WorkerHeartbeat(ctx, h.pod.RemoteStore, id, h.pod.Opts.LeaseFor, draining, row.Stream, true)
		if err != nil {
			return row, h.pod.DBError(err)
		}
		if beat.Open {
			return row, nil
		}
		// Closed since, or the worker has opened another stream since: the row tells.
	}
}

// workerRow reads the open row of a worker: [ErrClosed] also when it is somebody else's.
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
