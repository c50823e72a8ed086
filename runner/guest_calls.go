package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// GuestBeat is a heartbeat of a remote worker.
type GuestBeat struct {
	Running  []GuestListed
	Draining bool // it is about to stop
	Leaving  bool // it stops now
}

// GuestListed is a claim that a remote worker says it works on.
type GuestListed struct {
	GuestClaim
	Progress *job.Progress // news; nil: none
}

// GuestVerdict is what becomes of a claim that a remote worker listed.
type GuestVerdict struct {
	ID, Fence int64
	Cause     error // with which its handler's context ends; nil: it goes on
	Lost      bool  // it is not the worker's any more
}

// Heard takes a heartbeat of a remote worker in, on whichever pod it arrives, and tells what becomes of what it runs. Errors:
// [ErrGuestClosed].
func (r *Runner) Heard(ctx context.Context, id, owner string, b GuestBeat) ([]GuestVerdict, error) {
	g := r.guests.find(id)
	if g == nil {
		return r.heardElsewhere(ctx, id, owner, b)
	}
	if g.opts.Owner != owner {
		return nil, fmt.Errorf("heartbeat of worker %s: %w", id, ErrGuestClosed)
	}
	select {
	case <-g.over:
		return r.heardElsewhere(ctx, id, owner, b)
	default:
	}
	g.heard.Store(true)
	if b.Draining || b.Leaving {
		g.r.closing.Store(true)
		g.stop()
	}
	list := make([]GuestVerdict, len(b.Running))
	now := time.Now()
	for i, l := range b.Running {
		list[i] = g.verdict(l, now)
	}
	g.miss(now)
	if b.Leaving {
		return list, g.leave(ctx)
	}
	return list, nil
}

// verdict takes note that a claim was listed, and tells what becomes of it.
func (g *Guest) verdict(l GuestListed, now time.Time) GuestVerdict {
	v := GuestVerdict{ID: l.ID, Fence: l.Fence, Lost: true, Cause: job.ErrLeaseLost}
	if !signed(g.key, g.opts.ID, l.GuestClaim) {
		return v
	}
	g.mu.Lock()
	p := g.proxies[claimKey{l.ID, l.Fence}]
	if p != nil {
		p.seen, p.listed = now, true
		if p.timer != nil {
			p.timer.Stop()
		}
	}
	g.mu.Unlock()
	one := g.r.runs.find(l.ID, l.Fence)
	if p == nil || one == nil || one.isLost() {
		return v
	}
	if l.Progress != nil {
		one.note(*l.Progress)
	}
	return GuestVerdict{ID: l.ID, Fence: l.Fence, Cause: context.Cause(one.ctx)}
}

// note takes progress in that a handler elsewhere has made.
func (c *core) note(p job.Progress) {
	c.pulse.beat()
	if p.Message != nil {
		text := clean(*p.Message, 500)
		p.Message = &text
	}
	c.notes.set(p)
}

// miss gives back what the worker had and has not listed for a while: it lost it, or its report was taken in elsewhere.
func (g *Guest) miss(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, p := range g.proxies {
		one := g.r.runs.find(key.id, key.fence)
		lost := one != nil && one.isLost() && p.seen.Before(now)
		if p.listed && (lost || now.Sub(p.seen) > g.opts.AckWithin) {
			p.giveBack("its worker does not work on it any more")
		}
	}
}

// leave closes the row of a worker that stops. What it has not reported is left to the net, which knows of it by the row.
func (g *Guest) leave(ctx context.Context) error {
	g.r.runs.wait(g.r.opts.LeaseFor/4, nil)
	if err := g.r.heart.Leave(ctx, g.opts.ID); err != nil {
		return g.r.dbError(err)
	}
	g.finish(nil)
	if lanes, err := g.r.heart.VoidSlots(ctx, []string{g.opts.ID}); err == nil && len(lanes) > 0 {
		g.host.wakePeers()
	}
	return nil
}

// heardElsewhere takes in the heartbeat of a worker whose stream another pod serves, or none: its lease is the table's, not the stream's.
func (r *Runner) heardElsewhere(ctx context.Context, id, owner string, b GuestBeat) ([]GuestVerdict, error) {
	row, err := r.guestRow(ctx, id, owner)
	if err != nil {
		return nil, err
	}
	beat, err := r.heart.GuestHeartbeat(ctx, id, r.opts.LeaseFor, b.Draining || b.Leaving, row.Stream, true)
	if err != nil {
		return nil, r.dbError(err)
	}
	if !beat.Open {
		return nil, fmt.Errorf("heartbeat of worker %s: %w", id, ErrGuestClosed)
	}
	var leases []job.Lease
	for _, l := range b.Running {
		if signed(row.Key, id, l.GuestClaim) {
			leases = append(leases, job.Lease{JobID: l.ID, Fence: l.Fence, Pod: id})
		}
	}
	held, err := r.heart.Adopt(ctx, id, leases)
	if err != nil {
		return nil, r.dbError(err)
	}
	known := map[claimKey]store.Adopted{}
	for _, h := range held {
		known[claimKey{h.ID, h.Fence}] = h
	}
	list := make([]GuestVerdict, len(b.Running))
	for i, l := range b.Running {
		h, ok := known[claimKey{l.ID, l.Fence}]
		list[i] = GuestVerdict{ID: l.ID, Fence: l.Fence, Lost: !ok}
		switch {
		case !ok:
			list[i].Cause = job.ErrLeaseLost
		case h.CancelRequested:
			list[i].Cause = job.ErrCancelled
		case l.Progress != nil:
			_ = r.front.Progress(ctx, job.Lease{JobID: l.ID, Fence: l.Fence, Pod: id}, *l.Progress) // only a note
		}
	}
	if b.Leaving {
		return list, r.dbError(r.heart.Leave(ctx, id))
	}
	return list, nil
}

// guestRow reads the open row of a worker: [ErrGuestClosed] also when it is somebody else's.
func (r *Runner) guestRow(ctx context.Context, id, owner string) (store.GuestRow, error) {
	if uuid.Validate(id) != nil {
		return store.GuestRow{}, fmt.Errorf("worker %q: no id of a worker: %w", clean(id, 50), job.ErrInvalid)
	}
	row, err := r.heart.Guest(ctx, id)
	switch {
	case errors.Is(err, job.ErrNotFound):
	case err != nil:
		return row, r.dbError(err)
	case row.Owner == owner:
		return row, nil
	}
	return row, fmt.Errorf("worker %s: %w", id, ErrGuestClosed)
}
