package checker

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// fleetHolds (I16, over all pods): whenever a job of a lane that is limited over all pods is claimed, those that run in it
// are, with that one, no more than the lane may have had slots.
//
//   - A job runs from its claim until whatever ends the claim. Of a dead pod that is when the job is taken back, for nobody
//     may have its slot before; but a claim that may have been under way when its pod was declared dead, where nobody could
//     see it, and one whose pod left by itself, end with their pod. A claim without a handler is one whose reply was lost.
//   - Which limit a pod knows is as old as its latest heartbeat: what counts is the largest one that may have been in force
//     since a heartbeat and some slack before the claim, or, when the pod was disturbed then, before the disturbance. So a
//     limit that is raised counts from when the change was sent, one that is lowered until every pod has heard of it.
//   - What runs when a limit is lowered goes on, and is counted: until there is room again, nothing may start.
//
// The same by samples, in which the claims are seen in one snapshot, those of pods whose rows are open: no more than the
// largest limit that may have been in force between what the pod with the newest of them knew, and the sample.
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
		if s.job == nil || s.tampered || limits[s.job.Lane] == nil {
			continue
		}
		for _, c := range s.claims {
			if c.start() != nil {
				turns[s.job.Lane] = append(turns[s.job.Lane], turn{c.event.At, true, c}, turn{v.heldUntil(c), false, c})
			}
		}
	}
	for lane, list := range turns {
		slices.SortFunc(list, func(a, b turn) int { // who leaves makes room for who comes at the same moment
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
			from := v.knows(t.c)
			if most, known := limits[lane].most(from, t.at); known {
				f.judge(len(running) <= most, t.c.of.id, "job %d was claimed by %s at %s as the %dth that ran in lane %q, which had no more than %d slots over all pods since %s",
					t.c.of.id, v.boot(t.c.boot).name(), clock(t.at), len(running), lane, most, clock(from))
			}
		}
	}
	v.fleetSampled(limits, f)
}

// fleetSampled judges what samples saw of the limited lanes.
func (v *view) fleetSampled(limits map[string]limits, f *Finding) {
	for i := range v.run.Samples {
		sample := &v.run.Samples[i]
		count, newest := map[string]int{}, map[string]*claim{}
		for _, r := range sample.Running {
			s := v.stories[r.Job]
			_, open := sample.Leases[r.Boot]
			if limits[r.Lane] == nil || !open || s == nil || s.tampered {
				continue
			}
			if c := s.claim(r.Fence, r.Boot); c != nil && c.start() != nil {
				count[r.Lane]++
				if newest[r.Lane] == nil || c.event.At.After(newest[r.Lane].event.At) {
					newest[r.Lane] = c
				}
			}
		}
		for lane, n := range count {
			from, to := v.knows(newest[lane]), sample.T.Add(sample.Took)
			if most, known := limits[lane].most(from, to); known {
				f.judge(n <= most, newest[lane].of.id, "%d jobs ran in lane %q at %s, which had no more than %d slots over all pods since %s", n, lane,
					clock(sample.T), most, clock(from))
			}
		}
	}
}

// heldUntil is when nobody counts a claim any more.
func (v *view) heldUntil(c *claim) time.Time {
	until := time.Unix(math.MaxInt32, 0)
	if c.end != nil {
		until = c.end.At
	}
	b := v.boot(c.boot)
	if b.closed.IsZero() || !b.closed.Before(until) {
		return until
	}
	seen := b.closed.Sub(c.event.At) >= v.commitWithin() && v.trouble.still("", c.event.At, b.closed)
	if b.lapsed && seen {
		return until
	}
	return later(b.closed, c.event.At)
}

// knows is since when the limits may date that a pod went by when it claimed a job.
func (v *view) knows(c *claim) time.Time {
	return v.trouble.leftAlone(v.boot(c.boot).pod, c.event.At, v.run.Settings.Heartbeat+v.slack)
}

// leftAlone is the beginning of the latest stretch of time of length d before a moment in which nothing disturbed a pod.
func (t trouble) leftAlone(pod string, at time.Time, d time.Duration) time.Time {
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

// limits are those over all pods that a lane may have had, and when: from when a change was sent until the next one was
// answered well.
type limits []struct {
	span
	slots int
}

// most is the largest limit that may have been in force between two moments; none is known before the first.
func (l limits) most(from, to time.Time) (slots int, known bool) {
	for _, one := range l {
		if one.meets(from, to) {
			slots, known = max(slots, one.slots), true
		}
	}
	return slots, known
}

// limitsOf reads the limits over all pods from the operator's calls, by lane.
func limitsOf(run *history.Run) map[string]limits {
	byLane := map[string]limits{}
	for i := range run.Calls {
		c := &run.Calls[i]
		if c.Verb != "lane" || c.All == nil || c.Outcome == history.Refused {
			continue
		}
		one := limits{{span{c.Began, run.Settings.Ended}, *c.All}}
		if *c.All == unlimited {
			one[0].slots = math.MaxInt
		}
		for k := range run.Calls {
			next := &run.Calls[k]
			if next.Verb == "lane" && next.Lane == c.Lane && next.All != nil && next.Outcome == history.OK && next.Began.After(c.Began) {
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
