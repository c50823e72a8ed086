package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// shortestLimit is the shortest timeout or stale limit with which a kind's jobs may be claimed ahead of time.
const shortestLimit = time.Second

// shortKinds returns the kinds whose jobs may be claimed ahead of time, and the longest of their average run times. A kind qualifies if its
// recent runs took less time than a claim does.
func (c *claimer) shortKinds() (kinds []string, longest time.Duration) {
	if !c.Opts.ClaimAhead {
		return nil, 0
	}
	for _, name := range c.HandledKinds {
		k := c.Kinds[name]
		stale := c.Opts.StaleAfter
		if k.StaleAfter != nil {
			stale = *k.StaleAfter
		}
		took := time.Duration(c.took[name].Load())
		if cmp.Or(k.MaxCrashes, c.Opts.MaxCrashes) == 1 { // with a limit of one, every crash must be counted
			continue
		}
		if took == 0 || took >= c.roundTrip || k.Timeout > 0 && k.Timeout < shortestLimit || stale > 0 && stale < shortestLimit {
			continue
		}
		kinds, longest = append(kinds, name), max(longest, took)
	}
	return kinds, longest
}

// claimAhead claims jobs ahead of time while no slot is free. It does so in two cases: when the pod serves a single lane and half of the
// jobs previously claimed ahead of time have started, and after a notification, because more urgent jobs than the waiting ones may have
// arrived.
func (c *claimer) claimAhead(ctx context.Context, changed bool) error {
	kinds, longest := c.shortKinds()
	if len(kinds) == 0 {
		return nil
	}
	var wants []store.Want
	if lanes := c.Lanes.Names(); c.ahead.TakeLow() && !c.dry && len(lanes) == 1 {
		if n := c.ahead.Wants(c.Lanes.UnsharedSlots(lanes[0]), longest, c.roundTrip); n > 0 {
			wants = append(wants, store.Want{Lane: lanes[0], Ahead: n})
		}
	}
	refill := len(wants) > 0
	if !refill && changed {
		for _, lane := range c.ahead.Lanes() {
			if n := c.ahead.WantsUrgent(c.Lanes.UnsharedSlots(lane)); n > 0 {
				wants = append(wants, store.Want{Lane: lane, Ahead: n})
			}
		}
	}
	if len(wants) == 0 {
		return nil
	}
	found, err := c.send(ctx, wants, kinds, nil)
	c.dry = refill && len(found.Jobs) < wants[0].Ahead
	return err
}
