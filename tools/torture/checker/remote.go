package checker

import (
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// remote reports whether a process is a remote worker.
func (l *life) remote() bool { return len(l.Via) > 0 }

// slotsOf returns how many handlers a process may run concurrently.
func (v *view) slotsOf(l *life) int {
	if l.Slots > 0 {
		return l.Slots
	}
	return v.run.Settings.Slots
}

// podsRun reports whether any pod has run a kind. If none has, only remote workers run the kind.
func (v *view) podsRun(kind string) bool {
	return slices.ContainsFunc(v.lives, func(l *life) bool { return !l.remote() && l.knows(kind) })
}

// addPodTroubles adds the serving pods' troubles to a remote worker's: the faults that hit the pods, and the periods in which the pods had
// no process.
func (t *trouble) addPodTroubles(v *view) {
	t.far = map[string][]span{}
	for _, l := range v.lives {
		if !l.remote() || t.far[l.Pod] != nil {
			continue
		}
		own := append([]span{}, t.of[l.Pod]...)
		delete(t.of, l.Pod)
		for _, pod := range l.Via {
			own = append(own, t.of[pod]...)
			own = append(own, v.absences(pod)...)
		}
		t.far[l.Pod] = own
	}
}

// absences returns the periods in which a pod's place had no process that was accepting work. Each period begins when the previous process
// ended or was ordered to end.
func (v *view) absences(pod string) (list []span) {
	var from time.Time
	for _, l := range v.lives {
		if l.Pod != pod {
			continue
		}
		if l.Ready != nil {
			if !from.IsZero() {
				list = append(list, span{from, *l.Ready})
			}
			from = l.Ended
			if l.TermAt != nil {
				from = earlier(from, *l.TermAt)
			}
		}
	}
	if !from.IsZero() {
		list = append(list, span{from, later(from, v.run.Settings.Ended)})
	}
	return list
}

// acknowledged reports whether a remote worker must have acknowledged a claim by the given time. An undisturbed worker acknowledges its
// claims immediately. Unacknowledged claims are handed back after two heartbeat intervals without using up an attempt, so a worker has
// acknowledged any claim that it has held for longer.
func (v *view) acknowledged(c *claim, l *life, by time.Time) bool {
	at := c.start().T.Add(promptly)
	if at.Before(by) && v.trouble.still(l.Pod, c.event.At, at) {
		return true
	}
	return by.Sub(c.event.At) > 2*v.run.Settings.Heartbeat+v.slack && v.trouble.still("", c.event.At, by)
}

// workersKeepTheirs (I10b) checks that a remote worker's lease depends on its row, not on its stream or its pods. A worker keeps its jobs
// until its lease expires, even if its connections break or the pods that serve it die. Other processes may hand back only claims that the
// worker cannot have acknowledged. A worker that dies must be declared dead, which counts as a crash of its running jobs. A job may succeed
// on a worker only after a handler has returned there.
func workersKeepTheirs(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		for _, c := range s.claims {
			if l := v.podID(c.podID).life; l != nil && l.remote() {
				v.keptByItsWorker(c, l, f)
			}
		}
	}
	for _, b := range v.podIDs {
		if b.life == nil || !b.life.remote() || b.joined.IsZero() {
			continue
		}
		due := b.life.Ended.Add(v.run.Settings.Heartbeat + v.run.Settings.Lease + v.prompt())
		if due.Before(v.quietEnd()) && v.otherCouldRecover(b, b.life.Ended, due) && !v.skewedAt(b.life.Ended) {
			f.judge(!b.closed.IsZero() && !b.closed.After(due), 0, "%s ended at %s, but had not been declared dead by %s", b.name(), clock(b.life.Ended), clock(due))
		}
	}
}

func (v *view) keptByItsWorker(c *claim, l *life, f *Finding) {
	if c.end == nil {
		return
	}
	if c.end.Event == "job.succeeded" {
		f.judge(c.done != nil && !c.done.T.After(c.end.At.Add(sameClock)), c.of.id, "job %d succeeded on %s with fence %d, but no handler had returned there",
			c.of.id, l.Pod, c.fence)
	}
	if c.start() == nil || c.done != nil && !c.done.T.After(c.end.At) || l.TermAt != nil && !l.TermAt.After(c.end.At) {
		return // the worker was not holding the job, or handed it back itself
	}
	given := c.end.Event == "job.handed_back" && c.end.To == job.Pending
	f.judge(!given || !v.acknowledged(c, l, c.end.At), c.of.id, "job %d was handed back at %s on behalf of %s, which had been running it, with fence %d, since %s", c.of.id, clock(c.end.At), l.Pod, c.fence,
		clock(c.start().T))
}
