package host

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// gRPC has no receipts: what a worker has is what its heartbeats list. They may reach any pod, so that whoever sent a job and does not
// find it listed looks into the table before it takes it for lost.

// acknowledgeWithin bounds a look into the table.
const acknowledgeWithin = 5 * time.Second

// has reports whether the worker has listed a claim.
func (g *Session) has(p *proxy) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return p.listed
}

// list notes that the worker has a claim.
func (g *Session) list(p *proxy, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.seen, p.listed, p.missed = now, true, false
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (p *proxy) giveBack(why string) {
	select {
	case p.give <- why:
	default:
	}
}

// unacknowledged gives back what was sent and not listed anywhere: it has not arrived, and nothing else that is sent will.
func (g *Session) unacknowledged(key engine.ClaimKey, p *proxy) {
	this := map[engine.ClaimKey]*proxy{key: p}
	if g.has(p) || g.listedElsewhere(this) || g.giveBackEnded(this) {
		return
	}
	g.stop()
	p.giveBack(whyUnacknowledged)
}

// giveBackUnsent gives back what the worker has not acknowledged when its stream ends: nobody knows whether it arrived, and its fence
// is void either way.
func (g *Session) giveBackUnsent() {
	unsent := g.proxiesThat(func(_ engine.ClaimKey, p *proxy) bool { return !p.listed })
	if len(unsent) == 0 || g.listedElsewhere(unsent) {
		return
	}
	for _, p := range unsent {
		if !g.has(p) {
			p.giveBack(whyCut)
		}
	}
}

// listedElsewhere lists those claims that a heartbeat has listed on another pod, and reports whether those were all.
func (g *Session) listedElsewhere(claims map[engine.ClaimKey]*proxy) bool {
	ctx, cancel := context.WithTimeout(context.Background(), acknowledgeWithin)
	defer cancel()
	row, err := store.Worker(ctx, g.host.pod.RemoteStore, g.opts.ID)
	if err != nil {
		return false
	}
	n := 0
	for i := 0; i+1 < len(row.Acknowledged); i += 2 {
		if p := claims[engine.ClaimKey{ID: row.Acknowledged[i], Fence: row.Acknowledged[i+1]}]; p != nil {
			g.list(p, time.Now())
			n++
		}
	}
	return n == len(claims)
}

// miss looks after what the worker had and does not list now. Its report may have been taken in elsewhere: then its slot is free. What it
// has not listed for a while it has lost.
func (g *Session) miss(now time.Time) {
	overdue := g.proxiesThat(func(key engine.ClaimKey, p *proxy) bool {
		one := g.engine.Runs.Find(key.ID, key.Fence)
		lost := one != nil && one.IsLost() && p.seen.Before(now)
		return p.listed && (lost || now.Sub(p.seen) > g.opts.AckWithin)
	})
	for _, p := range overdue {
		p.giveBack(whyForgotten)
	}
	fresh := g.proxiesThat(func(_ engine.ClaimKey, p *proxy) bool {
		first := p.listed && !p.missed && p.seen.Before(now)
		p.missed = p.missed || first
		return first
	})
	if len(fresh) > 0 {
		g.giveBackEnded(fresh)
	}
}

// lookAfterUnheard looks after what the worker had and no heartbeat that came here has listed for a while. Where they reach other pods, its
// reports may as well.
func (g *Session) lookAfterUnheard() {
	before := time.Now().Add(-g.opts.AckWithin)
	unheard := g.proxiesThat(func(_ engine.ClaimKey, p *proxy) bool { return p.listed && p.seen.Before(before) })
	if len(unheard) > 0 {
		g.giveBackEnded(unheard)
	}
}

// giveBackEnded lets go of those claims that the worker holds no more, and reports whether those were all.
func (g *Session) giveBackEnded(claims map[engine.ClaimKey]*proxy) bool {
	ctx, cancel := context.WithTimeout(context.Background(), acknowledgeWithin)
	defer cancel()
	var leases []job.Lease
	for key := range claims {
		leases = append(leases, job.Lease{JobID: key.ID, Fence: key.Fence, Pod: g.opts.ID})
	}
	held, err := store.Adopt(ctx, g.host.pod.RemoteStore, g.opts.ID, leases)
	if err != nil {
		return false // nobody knows
	}
	for _, h := range held {
		delete(claims, engine.ClaimKey{ID: h.ID, Fence: h.Fence})
	}
	for _, p := range claims {
		p.giveBack(whyReported)
	}
	return len(held) == 0
}

// proxiesThat are those proxies for which a condition holds, which is asked under the lock.
func (g *Session) proxiesThat(are func(engine.ClaimKey, *proxy) bool) map[engine.ClaimKey]*proxy {
	g.mu.Lock()
	defer g.mu.Unlock()
	some := map[engine.ClaimKey]*proxy{}
	for key, p := range g.proxies {
		if are(key, p) {
			some[key] = p
		}
	}
	return some
}

// letGo lets go of a claim that the worker holds no more: its report was taken in elsewhere, or the claim is lost. The worker learns it
// by its next heartbeat.
func (g *Session) letGo(key engine.ClaimKey) {
	for _, p := range g.proxiesThat(func(k engine.ClaimKey, _ *proxy) bool { return k == key }) {
		p.giveBack(whyReported)
	}
}
