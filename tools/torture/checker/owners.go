package checker

import "time"

// promptly is the maximum time that a process may take to cancel a handler's context once it can run and knows that the handler must stop.
const promptly = time.Second

// ownersExclude (I4) checks that a job has one owner at a time:
//
//   - Claims of a job do not overlap in its history, and each starts at most one handler.
//   - A job is taken only from a pod whose row was closed, and a row is closed only after its lease has expired.
//   - External effects were accepted in the order of their fences.
//   - Handlers of the same job overlap only if the earlier one was told to stop in time.
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
				b := v.podID(bootOf(c.end))
				f.judge(!b.closed.IsZero() && !b.closed.After(c.end.At), s.id, "job %d was taken from %s, which had not been declared dead", s.id, b.name())
			}
			if i+1 < len(s.claims) {
				v.formerStopped(c, s.claims[i+1], f)
			}
		}
		effectsInOrder(s, f)
	}
	for _, b := range v.podIDs {
		if !b.lapsed || b.leaseSeen.IsZero() || v.skewedAt(b.closed) {
			continue
		}
		tooFar := b.leaseSeen.After(b.closed.Add(2 * v.run.Settings.Lease)) // only a clock jump can cause such a large difference
		f.judge(tooFar || !b.leaseSeen.After(b.closed), 0, "%s was declared dead at %s, but its lease lasted until %s", b.name(), clock(b.closed),
			clock(b.leaseSeen))
	}
}

// formerStopped checks a claim's handler that was still running when the next claim's handler started. If a handler has no end line in the
// ledger, either it ended with its process or it cannot be judged, unless its kind never ends on its own.
func (v *view) formerStopped(c, next *claim, f *Finding) {
	b := v.podID(c.podID)
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
	// A pod that hands back or stops a remote worker's job may not have been able to notify the worker yet. If an operator stops a job through
	// another pod, the handler's pod learns of it with its next heartbeat.
	within, stopped := promptly+v.slack, c.end.Event == "job.cancelled"
	if stopped {
		within += v.run.Settings.Heartbeat
	}
	if far := b.life.remote(); !recovers(c.end) && !far && !stopped {
		if c.ctxDone == nil && !v.trouble.still(b.pod, c.end.At.Add(-promptly), began.T) {
			return // the process may not have had time to report the cancellation
		}
		f.judge(c.ctxDone != nil && c.ctxDone.N < began.N, c.of.id, "job %d: the handler with fence %d was still running with a live context when fence %d started after %s",
			c.of.id, c.fence, next.fence, c.end.Event)
		return
	}
	bound := v.trouble.quietAfter(b.pod, later(c.end.At, began.T), within)
	f.judge(c.ctxDone != nil && !c.ctxDone.T.After(bound) || c.done != nil && !c.done.T.After(bound) || !b.life.Ended.After(bound), c.of.id,
		"job %d was taken from %s at %s, but its handler there, with fence %d, was not cancelled by %s", c.of.id, b.name(), clock(c.end.At),
		c.fence, clock(bound))
}

func effectsInOrder(s *story, f *Finding) {
	var highest int64
	for _, l := range s.lines {
		if l.Event == "effect" && !l.Refused {
			f.judge(l.Fence >= highest, s.id, "job %d: an effect with fence %d was accepted after fence %d was known", s.id, l.Fence, highest)
		}
		highest = max(highest, l.Fence)
	}
}
