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

// proxy stands for the handler that runs elsewhere.
type proxy struct {
	answers chan *answer // one is taken
	taken   atomic.Pointer[answer]
	give    chan string   // why the claim is given back
	seen    time.Time     // when the worker listed it last, or it was sent; guarded by Session.mu
	listed  bool          // the worker has it; guarded by Session.mu
	missed  bool          // a heartbeat has not listed it any more; guarded by Session.mu
	timer   *time.Timer   // of what is not acknowledged; nil: adopted
	ended   chan struct{} // closed when the handler has returned
}

// answer is what a handler elsewhere returned.
type answer struct {
	outcome *work.Outcome
	err     error
}

// sign makes the token of a claim: whoever shows it was sent the assignment.
func sign(key []byte, boot string, id, fence int64) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(boot))
	mac.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(id)), uint64(fence))) // #nosec G115 -- bits, not numbers
	return mac.Sum(nil)
}

// signed reports whether a token is a claim's.
func signed(key []byte, boot string, c Claim) bool {
	return hmac.Equal(sign(key, boot, c.ID, c.Fence), c.Token)
}

// handle is the handler of every kind of a remote worker: it sends the claim, unless the worker has it already, and waits for what
// becomes of it. That its context ends the worker learns by its heartbeat, which it is nudged to send.
func (g *Session) handle(ctx context.Context, j *work.Job) (*work.Outcome, error) {
	key := engine.ClaimKey{ID: j.Claimed.ID, Fence: j.Claimed.Fence}
	p, adopted := g.openProxy(key)
	defer g.shutProxy(key, p)
	if !adopted {
		if err := g.opts.Send(g.assignment(ctx, j)); err != nil {
			g.stop() // nothing more is sent on this stream
			if !g.has(p) && !g.listedElsewhere(map[engine.ClaimKey]*proxy{key: p}) {
				return nil, g.giveBack(whyUnsent, nil)
			}
		}
		g.host.pod.Metrics.RemoteSent.Inc()
	}
	return g.await(ctx, key, p)
}

// await waits for what becomes of a claim, and has its worker ask for the news when its context ends.
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
			return g.released(key, p)
		}
	}
}

// take notes which answer counts: one that comes later, or when the claim is given back already, does not.
func (p *proxy) take(a *answer) (*work.Outcome, error) {
	p.taken.Store(a)
	return a.outcome, a.err
}

// released is what a session that has ended leaves of a claim.
func (g *Session) released(key engine.ClaimKey, p *proxy) (*work.Outcome, error) {
	select {
	case a := <-p.answers: // it came first
		return p.take(a)
	default:
	}
	if errors.Is(g.why, job.ErrShutdown) && !g.has(p) && !g.listedElsewhere(map[engine.ClaimKey]*proxy{key: p}) {
		return nil, g.giveBack(whyShutdown, g.current)
	}
	return nil, &engine.NoVerdict{}
}

// giveBack gives a claim back without a verdict. With an owned function, the worker may have come back elsewhere with it.
func (g *Session) giveBack(why string, owned func(context.Context) bool) *engine.NoVerdict {
	return &engine.NoVerdict{Why: why, Owned: owned, Done: func() { g.host.countReturned(why) }}
}

// openProxy returns the proxy of a claim, a new one unless the claim was adopted.
func (g *Session) openProxy(key engine.ClaimKey) (p *proxy, adopted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p = g.proxies[key]; p != nil {
		return p, true
	}
	p = newProxy()
	g.proxies[key] = p
	p.timer = time.AfterFunc(g.opts.AckWithin, func() { g.unacknowledged(key, p) })
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
	c := &j.Claimed
	a := engine.Assignment{
		ID: c.ID, Fence: c.Fence, PipelineID: c.PipelineID, Kind: c.Kind, Lane: c.Lane, Subject: c.Subject, Attempt: c.Attempt, Crashes: c.Crashes,
		Step: c.Step, Snoozes: c.Snoozes, Priority: c.Priority, Args: c.Args, Checkpoint: c.Checkpoint, Token: sign(g.key, g.opts.ID, c.ID, c.Fence),
		ClaimedAt: c.ClaimedAt, Path: c.Path, Trace: c.Trace, MaxAttempts: j.MaxAttempts, CreatedAt: c.CreatedAt, Submitter: c.Submitter,
	}
	if c.ParentID != nil {
		a.ParentID = *c.ParentID
	}
	a.Deadline, _ = ctx.Deadline()
	return a
}

// known are those claims of a list whose tokens are right.
func (g *Session) known(list []Claim) (leases []job.Lease) {
	for _, c := range list {
		if signed(g.key, g.opts.ID, c) {
			leases = append(leases, job.Lease{JobID: c.ID, Fence: c.Fence, Pod: g.opts.ID})
		}
	}
	return leases
}

// adopt goes on with claims that the worker has.
func (g *Session) adopt(list []store.Adopted) {
	for _, a := range list {
		if !g.engine.Handled[a.Kind] {
			continue // it does not run that kind any more: the search for orphaned claims hands it back
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
