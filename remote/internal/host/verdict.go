package host

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/job"
)

// verdicts records the claims that a worker lists, and returns a verdict for each of them. A worker can list claims that this pod does not
// know, either because another pod sent them on a newer stream or because this pod has not adopted them yet. For these claims, verdicts
// reads the tables.
func (g *Session) verdicts(ctx context.Context, owner string, listed []Listed, now time.Time) ([]Verdict, error) {
	list := make([]Verdict, len(listed))
	var unknown []int
	for i, l := range listed {
		known := false
		if list[i], known = g.verdict(l, now); !known {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) == 0 {
		g.engine.Resize(g.opts.Slots)
		return list, nil
	}
	all := Beat{Running: make([]Listed, len(listed)), Draining: g.engine.Closing.Load()}
	for i, l := range listed {
		all.Running[i].Claim = l.Claim
	}
	for _, i := range unknown {
		all.Running[i].Progress = listed[i].Progress
	}
	verdicts, err := g.host.heartbeatElsewhere(ctx, g.opts.ID, owner, all)
	if err != nil {
		return nil, err
	}
	leftovers := 0
	for _, i := range unknown {
		if list[i] = verdicts[i]; list[i].Lost {
			leftovers++
		}
	}
	// After a job is lost, its handler may still be running on the worker although this pod no longer counts it. The handler occupies its
	// slot until it returns.
	g.engine.Resize(g.opts.Slots - leftovers)
	return list, nil
}

// verdict records that a claim was listed and returns its verdict. known is false if this pod does not know the claim.
func (g *Session) verdict(l Listed, now time.Time) (v Verdict, known bool) {
	lost := Verdict{ID: l.ID, Fence: l.Fence, Lost: true, Cause: job.ErrLeaseLost}
	if !validToken(g.key, g.opts.ID, l.Claim) {
		return lost, true
	}
	key := engine.ClaimKey{ID: l.ID, Fence: l.Fence}
	run := g.engine.Runs.Find(l.ID, l.Fence)
	g.mu.Lock()
	p, ended, stack := g.proxies[key], g.reported.has(key), g.stacks[key]
	g.mu.Unlock()
	if p != nil {
		g.list(p, now)
	}
	switch {
	case ended:
		return lost, true
	case run == nil:
		return lost, false
	case run.IsLost():
		lost.Cause = context.Cause(run.Ctx)
		return lost, true
	}
	if l.Progress != nil {
		run.Writer.Progress(storableProgress(*l.Progress))
	}
	return Verdict{ID: l.ID, Fence: l.Fence, Cause: context.Cause(run.Ctx), Stack: stack}, true
}

// recent holds the claims that ended most recently. A worker keeps listing a claim until it learns that the claim has ended.
type recent struct{ now, before map[engine.ClaimKey]bool }

// rememberAtMost is the maximum size of each half of recent.
const rememberAtMost = 1000

func (r *recent) add(key engine.ClaimKey) {
	if len(r.now) >= rememberAtMost {
		r.now, r.before = nil, r.now
	}
	if r.now == nil {
		r.now = map[engine.ClaimKey]bool{}
	}
	r.now[key] = true
}

func (r *recent) has(key engine.ClaimKey) bool { return r.now[key] || r.before[key] }
