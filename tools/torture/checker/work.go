package checker

import (
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// inEvery is the length of the windows, each of which must show progress.
const inEvery = 10 * time.Second

// workGoesOn (I14) checks for progress. No due job may be left waiting while a pod that can run it has a free slot. No claimed job may be
// left without a handler while its pod is working normally.
//
// The run is divided into windows of ten seconds. Only windows in which a pod is working normally and has free slots count. If jobs became
// due in the first half of a window that counts, the window must contain the start or end of a claim. If handlers returned in the first
// half, it must contain the end of a claim.
func workGoesOn(v *view, f *Finding) {
	for _, w := range v.waits {
		if w.recovered || w.born {
			continue
		}
		l, from := v.idleMeanwhile(w)
		f.judge(l == nil, w.of.id, "job %d was due at %s and waited until %s, while %s had room from %s", w.of.id, clock(w.since.At), clock(w.to),
			nameOf(l), clock(from))
	}
	for _, s := range v.ordered {
		for _, c := range s.claims {
			if l := v.podID(c.podID).life; s.job != nil && !s.tampered && l != nil {
				f.judge(!v.leftWithoutHandler(c, l), s.id, "job %d was claimed by %s at %s, with fence %d, but its handler did not start", s.id, l.Pod,
					clock(c.event.At), c.fence)
			}
		}
	}
	for i, w := range v.windows() {
		if w.due+w.returned == 0 || !v.lanes.free(job.DefaultLane, w.from, w.to) {
			continue
		}
		l := v.roomFor(w.from, w.to)
		if l == nil {
			continue
		}
		f.judge(w.due == 0 || w.claimed+w.ended > 0, 0, "window %d: %d jobs became due after %s, but nothing happened until %s, while %s was well and had room",
			i, w.due, clock(w.from), clock(w.to), l.Pod)
		f.judge(w.returned == 0 || w.ended > 0, 0, "window %d: %d handlers returned after %s, but no job ended until %s, while %s was well", i,
			w.returned, clock(w.from), clock(w.to), l.Pod)
	}
}

// leftWithoutHandler reports whether a claim had no handler although its process worked normally for long enough to start one or to
// discover that a reply was lost.
func (v *view) leftWithoutHandler(c *claim, l *life) bool {
	until := earlier(l.Ended, v.run.Settings.Ended)
	if c.end != nil {
		until = earlier(until, c.end.At)
	}
	if start := c.start(); start != nil {
		until = earlier(until, start.T)
	}
	return v.ableFor(l, c.event.At, until, v.prompt()+v.run.Settings.Heartbeat)
}

// window holds the counts for ten seconds of a run.
type window struct {
	span
	due, returned  int // jobs that became due, and handlers that returned, in the first half
	claimed, ended int // claims that were made, and claims that ended
}

func (v *view) windows() []window {
	s := v.run.Settings
	list := make([]window, max(0, int(s.QuietFrom.Sub(s.Began)/inEvery)))
	for i := range list {
		from := s.Began.Add(time.Duration(i) * inEvery)
		list[i].span = span{from, from.Add(inEvery)}
	}
	in := func(at time.Time) (w *window, first bool) {
		i := int(at.Sub(s.Began) / inEvery)
		if at.Before(s.Began) || i >= len(list) {
			return &window{}, false // the time is outside all windows
		}
		return &list[i], at.Sub(list[i].from) < inEvery/2
	}
	for _, one := range v.waits {
		if w, first := in(one.since.At); first && !one.born && one.of.key == "" && v.podsRun(one.of.job.Kind) {
			w.due++
		}
	}
	for _, one := range v.ordered {
		for _, c := range one.claims {
			w, _ := in(c.event.At)
			w.claimed++
			// If a claim was lost or stopped before its handler returned, no outcome is left to write.
			far := v.podID(c.podID).life != nil && v.podID(c.podID).life.remote()
			gone := far || c.end != nil && (recovers(c.end) || c.end.At.Before(c.returnedAt()))
			if w, first := in(c.returnedAt()); first && c.done != nil && !gone && !one.tampered {
				w.returned++
			}
			if c.end != nil && !recovers(c.end) {
				w, _ := in(c.end.At)
				w.ended++
			}
		}
	}
	return list
}

// roomFor returns a pod that worked normally and had free slots in every sample of the given period, or nil.
func (v *view) roomFor(from, to time.Time) *life {
	for _, l := range v.lives {
		if l.remote() || !v.able(l, from, to) {
			continue
		}
		if v.roomIn(l, from, to) {
			return l
		}
	}
	return nil
}

// roomIn reports whether a process had free slots in every sample of the given period.
func (v *view) roomIn(l *life, from, to time.Time) bool {
	looks := v.slotsOverTime()
	first, _ := slices.BinarySearchFunc(looks, from, func(l freeSlots, at time.Time) int { return l.at.Compare(at) })
	for _, look := range looks[first:] {
		if look.at.After(to) {
			break
		}
		if !look.free[l] {
			return false
		}
	}
	return true
}
