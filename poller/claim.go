package poller

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
)

// escalateAfter is the delay between a claim that leaves jobs behind and the notification of all pods. In this time, short jobs free their slots for
// the others.
const escalateAfter = 10 * time.Millisecond

// claimDue claims due jobs for every free slot and starts them. It reports whether another claim is likely to find more right away. The
// changed argument reports whether more jobs may have become pending since the latest claim.
func (p *Poller) claimDue(ctx context.Context, changed bool) (more bool, err error) {
	if len(p.HandledKinds) == 0 || p.Closing.Load() {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	news := p.news.Swap(false)
	p.engine.AwaitEnds() // the claim also fills the slots that these completions free
	if err := p.settleSlots(ctx, news); err != nil {
		return false, err
	}
	p.renewMarks(ctx)
	escalates := p.escalates.Swap(false)
	p.backlog.claimBegins()
	if !p.round.open || changed {
		p.round = round{since: time.Now()}
	}
	left := true // assume that jobs are left until the claim shows otherwise
	defer func() {
		left = left || p.engine.RunsIsolated() // a claim passes over further isolated jobs
		if p.backlog.claimEnded(left) {
			p.wakeForSlot()
		}
		switch {
		case !escalates:
		case err != nil || more || p.Lanes.Paused(): // during a pause, no pod can take the jobs
			p.escalates.Store(true)
		case left:
			time.AfterFunc(escalateAfter, func() {
				if p.backlog.hasMore() {
					p.member.Escalate()
				}
			})
		}
	}()
	p.engine.FillSlots()
	wants, unasked := p.Lanes.Wants(p.round.since)
	p.round.open = false
	p.round.asked += len(wants)
	taken, wants, err := p.takeStarts(ctx, wants)
	if err != nil {
		return false, err
	}
	if len(wants) == 0 {
		return false, p.claimAhead(ctx, news)
	}
	short, longest := p.ShortKinds(p.roundTrip)
	reserved := map[string]int{}
	p.dry = false
	for i := range wants {
		w := &wants[i]
		reserved[w.Lane] = w.N
		w.Ahead = p.Ahead.Wants(p.Lanes.UnsharedSlots(w.Lane), longest, p.roundTrip) / len(wants)
	}
	found, err := p.send(ctx, wants, short, reserved)
	for lane, n := range reserved {
		p.Lanes.Release(lane, n)
	}
	if err != nil {
		return false, err
	}
	p.giveStarts(ctx, taken, found)
	if len(found.Jobs) > 0 {
		p.turns.Found()
	}
	// A claim picks at most one isolated job, and may have passed over the jobs behind the others.
	isolated := slices.ContainsFunc(found.Jobs, func(c *store.Claimed) bool { return c.Isolated })
	var filled, exhausted []string
	for _, w := range wants {
		if _, rated := taken[w.Lane]; rated && reserved[w.Lane] == 0 {
			continue // the next claim follows with the next start
		} else if isolated || reserved[w.Lane] == 0 {
			filled = append(filled, w.Lane)
		} else if found.In(w.Lane) < w.N {
			exhausted = append(exhausted, w.Lane)
		}
	}
	if p.Lanes.Claimed(reserved, exhausted...) {
		p.wakeForSlot()
	}
	left = len(filled) > 0 || !p.Lanes.Covers(p.round.asked)
	p.round.open = len(filled) == 0 && unasked > 0
	again := func(lane string) bool { return p.Lanes.Free(map[string]int{lane: 1}) }
	return p.round.open || unasked > 0 && p.Lanes.AnyFree() || slices.ContainsFunc(filled, again), nil
}

// send sends a claim, and starts the handlers of jobs for which slots are reserved. Jobs of the kinds in short may also be claimed ahead of
// time.
func (p *Poller) send(ctx context.Context, wants []store.Want, short []string, reserved map[string]int) (store.Claims, error) {
	podID, began := p.PodID(), time.Now()
	_ = failpoint.Hit(failpoint.ClaimSend)
	// Once a claim has been sent, wait for its reply, but only briefly if the pod is stopping.
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	for i := range wants {
		if wants[i].Marks = p.Marks.ForClaim(wants[i].Lane); wants[i].Marks != nil {
			wants[i].Ahead = 0 // the search for them would read what lies before the marks
		}
	}
	found, err := p.Store.Claim(asking, podID, wants, p.HandledKinds, short, !p.engine.RunsIsolated())
	if err != nil {
		if store.Unknown(err) {
			p.Unknown.Raise()
		}
		return found, err
	}
	took := time.Since(began)
	p.roundTrip = cmp.Or(p.roundTrip, took)
	p.roundTrip += (took - p.roundTrip) / 8
	p.engine.LaunchClaims(podID, found, reserved)
	if lanes := lanesOf(wants); slots.Slow(found.Took, len(found.Jobs)) {
		p.FindMarks(ctx, lanes...)
	} else {
		p.Marks.Prune(lanes...)
	}
	return found, nil
}

// claimAhead claims jobs ahead of time while no slot is free. It does so in two cases: when the pod serves a single lane and half of the
// jobs previously claimed ahead of time have started, and after a notification, because more urgent jobs than the waiting ones may have
// arrived.
func (p *Poller) claimAhead(ctx context.Context, changed bool) error {
	kinds, longest := p.ShortKinds(p.roundTrip)
	if len(kinds) == 0 {
		return nil
	}
	var wants []store.Want
	if lanes := p.Lanes.Names(); p.Ahead.TakeLow() && !p.dry && len(lanes) == 1 {
		if n := p.Ahead.Wants(p.Lanes.UnsharedSlots(lanes[0]), longest, p.roundTrip); n > 0 {
			wants = append(wants, store.Want{Lane: lanes[0], Ahead: n})
		}
	}
	refill := len(wants) > 0
	if !refill && changed {
		for _, lane := range p.Ahead.Lanes() {
			if n := p.Ahead.WantsUrgent(p.Lanes.UnsharedSlots(lane)); n > 0 {
				wants = append(wants, store.Want{Lane: lane, Ahead: n})
			}
		}
	}
	if len(wants) == 0 {
		return nil
	}
	found, err := p.send(ctx, wants, kinds, nil)
	p.dry = refill && len(found.Jobs) < wants[0].Ahead
	return err
}
