package checker

import (
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// rate is a rate that may be in force in a lane, from the time at which its change is sent until the response to the next successful change.
type rate struct {
	span
	perSecond, burst float64
}

// indexRates takes the rates from the operator's calls. If a call got no response, a pod may still apply it for a while.
func (v *view) indexRates() {
	v.rates, v.rated = map[string][]rate{}, map[string][]*claim{}
	for i := range v.run.Calls {
		c := &v.run.Calls[i]
		if c.Verb != "rate" || c.Outcome == history.Refused {
			continue
		}
		one := rate{span{c.Began, v.run.Settings.Ended}, float64(*c.Rate), float64(*c.Burst)}
		known := c.Ended
		if c.Outcome == history.Unknown {
			known = c.Ended.Add(unknownFor)
		}
		for k := range v.run.Calls {
			if next := &v.run.Calls[k]; next.Verb == "rate" && next.Lane == c.Lane && next.Outcome == history.OK && !next.Began.Before(known) {
				one.to = earlier(one.to, next.Ended)
			}
		}
		v.rates[c.Lane] = append(v.rates[c.Lane], one)
	}
	for _, s := range v.ordered {
		if s.job != nil && !s.tampered && v.rates[s.job.Lane] != nil {
			v.rated[s.job.Lane] = append(v.rated[s.job.Lane], s.claims...)
		}
	}
	for _, list := range v.rated {
		slices.SortFunc(list, func(a, b *claim) int { return a.event.At.Compare(b.event.At) })
	}
}

// ratesHold (I8d) checks that, in any period t, a lane starts at most burst + t × rate jobs. Each claim counts, also those whose handler never starts. A pod
// takes a start shortly before the claim, or, if it is disturbed, before the disturbance. A period therefore contains a claim if it contains the time from
// which the start may have been taken. Where several rates may be in force, the highest counts.
func ratesHold(v *view, f *Finding) {
	for lane, list := range v.rated {
		taken := make([]time.Time, len(list))
		for i, c := range list {
			taken[i] = v.trouble.lastCalm(v.podID(c.podID).pod, c.event.At, v.commitWithin())
		}
		for _, from := range taken {
			n := 0
			for i, c := range list {
				if taken[i].Before(from) {
					continue
				}
				n++
				if most, known := v.startsWithin(lane, from, c.event.At); known && !f.judge(float64(n) <= most, c.of.id,
					"job %d was start number %d in lane %q from %s to %s, which allows %.1f", c.of.id, n, lane, clock(from), clock(c.event.At), most) {
					return
				}
			}
		}
	}
}

// startsWithin returns the maximum number of starts in a period. known is false if no rate was set before it.
func (v *view) startsWithin(lane string, from, to time.Time) (most float64, known bool) {
	edges := []time.Time{from, to}
	for _, r := range v.rates[lane] {
		known = known || r.from.Before(from)
		for _, at := range []time.Time{r.from, r.to} {
			if at.After(from) && at.Before(to) {
				edges = append(edges, at)
			}
		}
	}
	slices.SortFunc(edges, time.Time.Compare)
	burst := 0.0
	for i, at := range edges[:len(edges)-1] {
		next, highest := edges[i+1], 0.0
		for _, r := range v.rates[lane] {
			if r.meets(at, next) {
				highest, burst = max(highest, r.perSecond), max(burst, r.burst)
			}
		}
		most += highest * next.Sub(at).Seconds()
	}
	return most + burst, known
}

// standBy returns how long a pod may wait for the next start of a lane, beyond its poll: two intervals of its lowest rate, and its jitter. It is 0 if the lane
// has no rate.
func (v *view) standBy(lane string, from, to time.Time) (longest time.Duration) {
	for _, r := range v.rates[lane] {
		if r.meets(from, to) {
			longest = max(longest, time.Second+time.Duration(2*float64(time.Second)/r.perSecond))
		}
	}
	return longest
}

// noneStarts reports whether a lane with a rate was open, but no job of it was claimed in a period.
func (v *view) noneStarts(lane string, from, to time.Time) bool {
	queue, known := during(v.lanes.queue, from, to)
	return v.rates[lane] != nil && known && queue.open &&
		!slices.ContainsFunc(v.rated[lane], func(c *claim) bool { return !c.event.At.Before(from) && !c.event.At.After(to) })
}
