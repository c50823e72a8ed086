package checker

import "time"

// promptly is within what a handler's context ends once its process can run and knows that it should.
const promptly = time.Second

// ownersExclude (I4): claims of a job do not overlap in its history; each starts at most one handler; a job is taken away
// only from a pod whose row was closed, and a row is closed only when its lease has ended; effects that the world outside
// accepted are in the order of their fences; and handlers of one job overlap only when the former one has been told to end
// in time.
func ownersExclude(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		for i, c := range s.claims {
			f.judge(c.end != nil || i == len(s.claims)-1, s.id, "job %d was claimed again, by event %d, while the claim with fence %d was open",
				s.id, number(s.claims[min(i+1, len(s.claims)-1)].event), c.fence)
			f.judge(len(c.starts) <= 1, s.id, "job %d: %d handlers started for the claim with fence %d", s.id, len(c.starts), c.fence)
			if c.end != nil && recovers(c.end) {
				b := v.boot(bootOf(c.end))
				f.judge(!b.closed.IsZero() && !b.closed.After(c.end.At), s.id, "job %d was taken from %s, which nobody had declared dead", s.id, b.name())
			}
			if i+1 < len(s.claims) {
				v.formerStopped(c, s.claims[i+1], f)
			}
		}
		effectsInOrder(s, f)
	}
	for _, b := range v.boots {
		if !b.lapsed || b.leaseSeen.IsZero() || v.skewedAt(b.closed) {
			continue
		}
		tooFar := b.leaseSeen.After(b.closed.Add(2 * v.run.Settings.Lease)) // only a clock that jumped writes that
		f.judge(tooFar || !b.leaseSeen.After(b.closed), 0, "%s was declared dead at %s, and its lease lasted until %s", b.name(), clock(b.closed),
			clock(b.leaseSeen))
	}
}

// formerStopped judges a claim's handler that was still running when the next claim's started. One whose end was never
// heard of has ended with its process, or cannot be judged, unless it is known not to end by itself.
func (v *view) formerStopped(c, next *claim, f *Finding) {
	b := v.boot(c.boot)
	if c.start() == nil || next.start() == nil || c.end == nil || b.life == nil {
		return
	}
	began := next.start()
	if c.done != nil && c.done.N < began.N || !b.life.Ended.After(began.T) {
		f.Checked++
		return
	}
	if c.done == nil && !endless(c.of.job) {
		return
	}
	// The pod that gives something back in a worker's stead, or stops it, may not be able to tell it so yet.
	if far := b.life.remote(); !recovers(c.end) && !far {
		if c.told == nil && !v.trouble.still(b.pod, c.end.At.Add(-promptly), began.T) {
			return // it may have had no time to say so
		}
		f.judge(c.told != nil && c.told.N < began.N, c.of.id, "job %d: the handler with fence %d ran on, its context whole, when fence %d started after %s",
			c.of.id, c.fence, next.fence, c.end.Event)
		return
	}
	bound := v.trouble.quietAfter(b.pod, later(c.end.At, began.T), promptly+v.slack)
	f.judge(c.told != nil && !c.told.T.After(bound) || c.done != nil && !c.done.T.After(bound) || !b.life.Ended.After(bound), c.of.id,
		"job %d was taken from %s at %s, and its handler there, fence %d, was not told to end by %s", c.of.id, b.name(), clock(c.end.At),
		c.fence, clock(bound))
}

func effectsInOrder(s *story, f *Finding) {
	var highest int64
	for _, l := range s.lines {
		if l.Event == "effect" && !l.Refused {
			f.judge(l.Fence >= highest, s.id, "job %d: an effect of fence %d was accepted after fence %d was heard of", s.id, l.Fence, highest)
		}
		highest = max(highest, l.Fence)
	}
}
