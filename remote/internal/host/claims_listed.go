package host

import (
	"context"
	"math"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// gRPC has no acknowledgements, so a worker acknowledges its jobs by listing them in heartbeats. A heartbeat can arrive on any pod, so a
// pod that does not find an assignment in its heartbeats reads the worker's row before it treats the job as lost.

// acknowledgeWithin is the timeout for reading the worker's row.
const acknowledgeWithin = 5 * time.Second

// has reports whether the worker has listed the claim.
func (g *Session) has(p *proxy) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return p.listed
}

// list records that the worker has listed the claim.
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

// giveBackUnacknowledged hands back a claim that was sent but has not been listed in a heartbeat to any pod. Because the job did not
// arrive, it also stops the stream: the stream is broken, and nothing else would arrive on it.
func (g *Session) giveBackUnacknowledged(key engine.ClaimKey, p *proxy) {
	this := map[engine.ClaimKey]*proxy{key: p}
	if g.has(p) || g.markListedElsewhere(this) || g.giveBackEnded(this) {
		return
	}
	g.stop()
	p.giveBack(whyUnacknowledged)
}

// giveBackUnlisted hands back the claims that the worker has not acknowledged by the time its stream ends. Their fences become invalid even
// if the jobs did arrive.
func (g *Session) giveBackUnlisted() {
	unlisted := g.proxiesThat(func(_ engine.ClaimKey, p *proxy) bool { return !p.listed })
	if len(unlisted) == 0 || g.markListedElsewhere(unlisted) {
		return
	}
	for _, p := range unlisted {
		if !g.has(p) {
			p.giveBack(whyCut)
		}
	}
}

// markListedElsewhere marks the claims that a heartbeat on another pod has listed. It reports whether all of the given claims were listed.
func (g *Session) markListedElsewhere(claims map[engine.ClaimKey]*proxy) bool {
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

// checkUnlisted handles claims that the worker has stopped listing. If another pod has accepted a claim's report, checkUnlisted frees the
// slot. A claim that has not been listed for AckWithin counts as lost.
func (g *Session) checkUnlisted(now time.Time) {
	overdue := g.proxiesThat(func(key engine.ClaimKey, p *proxy) bool {
		run := g.engine.Runs.Find(key.ID, key.Fence)
		lost := run != nil && run.IsLost() && p.seen.Before(now)
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

// checkUnheard checks claims that no heartbeat on this pod has listed for AckWithin. If the worker sends its heartbeats to other pods, it
// may send its reports there too.
func (g *Session) checkUnheard() {
	before := time.Now().Add(-g.opts.AckWithin)
	unheard := g.proxiesThat(func(_ engine.ClaimKey, p *proxy) bool { return p.listed && p.seen.Before(before) })
	if len(unheard) > 0 {
		g.giveBackEnded(unheard)
	}
}

// giveBackEnded releases the claims that the worker no longer holds. It reports whether it released all of them.
func (g *Session) giveBackEnded(claims map[engine.ClaimKey]*proxy) bool {
	ctx, cancel := context.WithTimeout(context.Background(), acknowledgeWithin)
	defer cancel()
	var leases []job.Lease
	for key := range claims {
		leases = append(leases, job.Lease{JobID: key.ID, Fence: key.Fence, Pod: g.opts.ID})
	}
	held, err := store.ClaimsToAdopt(ctx, g.host.pod.RemoteStore, g.opts.ID, leases)
	if err != nil {
		return false // the state is unknown
	}
	for _, h := range held {
		delete(claims, engine.ClaimKey{ID: h.ID, Fence: h.Fence})
	}
	for _, p := range claims {
		p.giveBack(whyReported)
	}
	return len(held) == 0
}

// proxiesThat returns the proxies for which are returns true. It calls are with g.mu held.
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

// release releases a claim that the worker no longer holds, because another pod has accepted its report or because the claim is lost. The
// worker learns this from its next heartbeat.
func (g *Session) release(key engine.ClaimKey) {
	for _, p := range g.proxiesThat(func(k engine.ClaimKey, _ *proxy) bool { return k == key }) {
		p.giveBack(whyReported)
	}
}

// adoptions reads which claims the tables assign to remote workers. The tables have no index on the pod, which keeps claiming cheap but
// makes each read scan all waiting and running jobs. When a pod crashes, all its workers reconnect to other pods at once, and each worker
// needs several reads. Workers that request a read while another is running therefore share the next one. They cannot share the running
// read, because it may miss their latest claims.
type adoptions = routine.Batcher[string, []store.Held]

// adoptionTimeout is the timeout of one read.
const adoptionTimeout = 30 * time.Second

// newAdoptions returns an adoptions value that reads claims by calling read, usually [store.Store.Held].
func newAdoptions(read func(ctx context.Context, podIDs ...string) ([]store.Held, error)) *adoptions {
	return routine.NewBatcher(1, math.MaxInt, func(podIDs []string) ([][]store.Held, error) {
		ctx, cancel := context.WithTimeout(context.Background(), adoptionTimeout)
		defer cancel()
		held, err := read(ctx, podIDs...)
		of := make(map[string][]store.Held, len(podIDs))
		for _, h := range held {
			of[h.Pod] = append(of[h.Pod], h)
		}
		results := make([][]store.Held, len(podIDs))
		for i, podID := range podIDs {
			results[i] = of[podID]
		}
		return results, err
	})
}
