package checker

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// fleetHolds (I16, across all pods) checks lanes with a limit across all pods. At each claim of a job in a limited lane, the number of
// jobs running in the lane, including the new one, must not exceed the largest limit that may have been in force.
//
//   - A job counts as running from its claim to the event that ends the claim. If its pod died, that event is the recovery, because no
//     other job may use the slot before then. Two kinds of claims end with their pod instead: claims that may have been uncommitted, and
//     thus invisible, when the pod was declared dead, and claims of a pod that left by itself. A claim without a handler is not counted,
//     because its reply was lost.
//   - A pod learns of a limit from its heartbeat. The bound is therefore the largest limit that may have been in force since one heartbeat
//     interval plus slack before the claim. If the pod was disturbed at that time, the period starts before the disturbance. A raised limit
//     counts from when the change was sent. A lowered limit counts once every pod has received it.
//   - Jobs that are running when a limit is lowered continue and are counted. No other job may start until there is a free slot again.
//
// Samples are checked in the same way. Each is one snapshot of the claims held by pods whose rows are open. The number of claims must not
// exceed the largest limit that may have been in force between the sample and the time at which the pod with the newest claim last learned
// of the limits.
func (v *view) fleetHolds(f *Finding) {
	limits := limitsOf(v.run)
	if len(limits) == 0 {
		return
	}
	type turn struct {
		at    time.Time
		began bool
		c     *claim
	}
	turns := map[string][]turn{}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || limits[settingsOf(s.job.Lane)] == nil {
			continue
		}
		for _, c := range s.claims {
			if c.start() != nil {
				turns[s.job.Lane] = append(turns[s.job.Lane], turn{c.event.At, true, c}, turn{v.heldUntil(c), false, c})
			}
		}
	}
	for lane, list := range turns {
		slices.SortFunc(list, func(a, b turn) int { // at equal times, jobs that end come first, because they make room for jobs that start
			return cmp.Or(a.at.Compare(b.at), compareBool(a.began, b.began), cmp.Compare(a.c.of.id, b.c.of.id))
		})
		running := map[*claim]bool{}
		for _, t := range list {
			if !t.began {
				delete(running, t.c)
				continue
			}
			if v.heldUntil(t.c).After(t.at) {
				running[t.c] = true
			}
			from := v.limitsReadSince(t.c)
			if most, known := limits[settingsOf(lane)].most(from, t.at); known {
				f.judge(len(running) <= most, t.c.of.id, "job %d was claimed by %s at %s as running job number %d in lane %q, which has had at most %d slots over all pods since %s",
					t.c.of.id, v.podID(t.c.podID).name(), clock(t.at), len(running), lane, most, clock(from))
			}
		}
	}
	v.fleetSampled(limits, f)
}

// fleetSampled checks the limited lanes in the samples.
func (v *view) fleetSampled(limits map[string]limits, f *Finding) {
	for i := range v.run.Samples {
		sample := &v.run.Samples[i]
		count, newest := map[string]int{}, map[string]*claim{}
		for _, r := range sample.Running {
			s := v.stories[r.Job]
			_, open := sample.Leases[r.PodID]
			if limits[settingsOf(r.Lane)] == nil || !open || s == nil || s.tampered {
				continue
			}
			if c := s.claim(r.Fence, r.PodID); c != nil && c.start() != nil {
				count[r.Lane]++
				if newest[r.Lane] == nil || c.event.At.After(newest[r.Lane].event.At) {
					newest[r.Lane] = c
				}
			}
		}
		for lane, n := range count {
			from, to := v.limitsReadSince(newest[lane]), sample.T.Add(sample.Took)
			if most, known := limits[settingsOf(lane)].most(from, to); known {
				f.judge(n <= most, newest[lane].of.id, "%d jobs ran in lane %q at %s, which has had at most %d slots over all pods since %s", n, lane,
					clock(sample.T), most, clock(from))
			}
		}
	}
}

// heldUntil returns the time until which a claim counts toward its lane's limit.
func (v *view) heldUntil(c *claim) time.Time {
	until := time.Unix(math.MaxInt32, 0)
	if c.end != nil {
		until = c.end.At
	}
	b := v.podID(c.podID)
	if b.closed.IsZero() || !b.closed.Before(until) {
		return until
	}
	seen := b.closed.Sub(c.event.At) >= v.commitWithin() && v.trouble.still("", c.event.At, b.closed)
	if b.lapsed && seen {
		return until
	}
	return later(b.closed, c.event.At)
}

// limitsReadSince returns a time at or after which the pod must have read the limits that it applied to the claim.
func (v *view) limitsReadSince(c *claim) time.Time {
	return v.trouble.lastCalm(v.podID(c.podID).pod, c.event.At, v.run.Settings.Heartbeat+v.slack)
}

// lastCalm returns the start of the pod's latest undisturbed period of length d before the given time.
func (t trouble) lastCalm(pod string, at time.Time, d time.Duration) time.Time {
	spans := slices.Concat(t.all, t.about(pod))
	slices.SortFunc(spans, func(a, b span) int { return b.to.Compare(a.to) })
	from := at.Add(-d)
	for again := true; again; {
		again = false
		for _, s := range spans {
			if s.meets(from, at) && s.from.Add(-d).Before(from) {
				from, again = s.from.Add(-d), true
			}
		}
	}
	return from
}

// limits contains the limits across all pods that may have been in force in a lane. Each limit lasts from when its change was sent until
// the next change succeeded.
type limits []struct {
	span
	slots int
}

// most returns the largest limit that may have been in force between two times. known is false if no change had been sent by then.
func (l limits) most(from, to time.Time) (slots int, known bool) {
	for _, one := range l {
		if one.meets(from, to) {
			slots, known = max(slots, one.slots), true
		}
	}
	return slots, known
}

// limitsOf collects each lane's limits across all pods from the operator's calls.
func limitsOf(run *history.Run) map[string]limits {
	byLane := map[string]limits{}
	for i := range run.Calls {
		c := &run.Calls[i]
		if c.Verb != "lane" || c.Slots == nil || c.Outcome == history.Refused {
			continue
		}
		one := limits{{span{c.Began, run.Settings.Ended}, *c.Slots}}
		if *c.Slots == unlimited {
			one[0].slots = math.MaxInt
		}
		for k := range run.Calls {
			next := &run.Calls[k]
			if next.Verb == "lane" && next.Lane == c.Lane && next.Slots != nil && next.Outcome == history.OK && next.Began.After(c.Began) {
				one[0].to = earlier(one[0].to, next.Ended)
			}
		}
		byLane[c.Lane] = append(byLane[c.Lane], one...)
	}
	return byLane
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
