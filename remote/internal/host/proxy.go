package host

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// proxy stands in for a handler that runs on the worker.
type proxy struct {
	answers chan *answer // only the first answer is used
	taken   atomic.Pointer[answer]
	give    chan string   // the reason for handing back the claim
	seen    time.Time     // when the job was sent or the worker last listed it; guarded by Session.mu
	listed  bool          // the worker has acknowledged the job; guarded by Session.mu
	missed  bool          // a heartbeat has omitted the claim; guarded by Session.mu
	timer   *time.Timer   // fires if the worker does not acknowledge the job; nil for an adopted claim
	ended   chan struct{} // closed when the handler has returned
}

// answer holds the values that a handler on the worker returned.
type answer struct {
	outcome *work.Outcome
	err     error
}

// tokenOf returns a claim's token, which proves that the sender received the assignment.
func tokenOf(key []byte, podID string, id, fence int64) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(podID))
	mac.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(id)), uint64(fence))) // #nosec G115 -- bits, not numbers
	return mac.Sum(nil)
}

// validToken reports whether a claim's token is valid.
func validToken(key []byte, podID string, c Claim) bool {
	return hmac.Equal(tokenOf(key, podID, c.ID, c.Fence), c.Token)
}

// handle is the handler for all of a remote worker's kinds. It sends the job, unless the worker already has it, and waits until the claim
// ends. When the handler's context is cancelled, handle nudges the worker, which then sends a heartbeat and learns of the cancellation from
// the response.
func (g *Session) handle(ctx context.Context, j *work.Job) (*work.Outcome, error) {
	key := engine.ClaimKey{ID: j.Claimed.ID, Fence: j.Claimed.Fence}
	p, adopted := g.openProxy(key)
	defer g.shutProxy(key, p)
	if !adopted {
		if err := g.opts.Send(g.assignment(ctx, j)); err != nil {
			g.stop() // stop sending on this stream
			if !g.has(p) && !g.markListedElsewhere(map[engine.ClaimKey]*proxy{key: p}) {
				return nil, g.giveBack(whyUnsent, nil)
			}
		}
		g.host.pod.Metrics.RemoteSent.Inc()
	}
	return g.await(ctx, key, p)
}

// await waits until a claim is reported or handed back. It nudges the worker when the context is cancelled.
func (g *Session) await(ctx context.Context, key engine.ClaimKey, p *proxy) (*work.Outcome, error) {
	for ends := ctx.Done(); ; ends = nil {
		select {
		case <-ends:
			if g.opts.Nudge != nil {
				g.opts.Nudge()
			}
		case a := <-p.answers:
			return p.take(a)
		case why := <-p.give:
			return nil, g.giveBack(why, g.current)
		case <-g.over:
			return g.settleReleased(key, p)
		}
	}
}

// take records the first answer and returns it. Answers that arrive later, or after the claim was handed back, are ignored.
func (p *proxy) take(a *answer) (*work.Outcome, error) {
	p.taken.Store(a)
	return a.outcome, a.err
}

// settleReleased returns the outcome of a claim whose session has ended.
func (g *Session) settleReleased(key engine.ClaimKey, p *proxy) (*work.Outcome, error) {
	select {
	case a := <-p.answers: // the answer arrived before the session ended
		return p.take(a)
	default:
	}
	if errors.Is(g.why, job.ErrShutdown) && !g.has(p) && !g.markListedElsewhere(map[engine.ClaimKey]*proxy{key: p}) {
		return nil, g.giveBack(whyShutdown, g.current)
	}
	return nil, &engine.NoOutcome{}
}

// giveBack returns a result that hands back a claim without an outcome. Set owned if the worker may have reconnected elsewhere and still
// hold the claim.
func (g *Session) giveBack(why string, owned func(context.Context) bool) *engine.NoOutcome {
	return &engine.NoOutcome{Why: why, Owned: owned, Done: func() { g.host.countReturned(why) }}
}

// openProxy returns the proxy of a claim and reports whether the claim was adopted. If it was not, openProxy creates the proxy.
func (g *Session) openProxy(key engine.ClaimKey) (p *proxy, adopted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p = g.proxies[key]; p != nil {
		return p, true
	}
	p = newProxy()
	g.proxies[key] = p
	p.timer = time.AfterFunc(g.opts.AckWithin, func() { g.giveBackUnacknowledged(key, p) })
	return p, false
}

func newProxy() *proxy {
	return &proxy{answers: make(chan *answer, 1), give: make(chan string, 1), seen: time.Now(), ended: make(chan struct{})}
}

func (g *Session) shutProxy(key engine.ClaimKey, p *proxy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.proxies, key)
	if p.timer != nil {
		p.timer.Stop()
	}
	close(p.ended)
}

func (g *Session) assignment(ctx context.Context, j *work.Job) engine.Assignment {
	a := engine.Assignment{Claimed: *j.Claimed, AttemptLimit: j.MaxAttempts, Token: tokenOf(g.key, g.opts.ID, j.Claimed.ID, j.Claimed.Fence)}
	a.Deadline, _ = ctx.Deadline()
	return a
}

// known returns the leases of the claims whose tokens are valid.
func (g *Session) known(list []Claim) (leases []job.Lease) {
	for _, c := range list {
		if validToken(g.key, g.opts.ID, c) {
			leases = append(leases, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: g.opts.ID})
		}
	}
	return leases
}

// adopt continues claims that the worker already holds.
func (g *Session) adopt(list []store.Adopted) {
	for _, a := range list {
		if !g.engine.Handled[a.Kind] {
			continue // the worker no longer handles this kind; the search for orphaned claims will hand back the job
		}
		key := engine.ClaimKey{ID: a.ID, Fence: a.Fence}
		p := newProxy()
		p.listed = true
		g.mu.Lock()
		g.proxies[key] = p
		g.mu.Unlock()
		g.engine.Adopt(a)
	}
}
