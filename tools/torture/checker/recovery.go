package checker

import "time"

// jobsRecovered (I10) checks recovery. A pod whose lease has expired must be declared dead, and its jobs must be taken back, within one
// poll interval, as long as another pod is working normally. A recovered job must run as soon as a pod that can run it has a free slot. The
// expiry of a lease is known only if a sample shows it and no later heartbeat can have extended the lease.
func jobsRecovered(v *view, f *Finding) {
	for _, b := range v.podIDs {
		if !b.lapsed || b.leaseSeen.IsZero() || !b.closed.Before(b.seen.Add(v.run.Settings.Lease)) || v.skewedAt(b.closed) {
			continue
		}
		due := b.leaseSeen.Add(v.prompt())
		if v.otherCouldRecover(b, b.leaseSeen, due) {
			f.judge(!b.closed.After(due), 0, "%s was declared dead %s after its lease had expired", b.name(), b.closed.Sub(b.leaseSeen))
		}
		taken := later(b.closed, due).Add(time.Second) // a job whose row was locked is taken back at the next poll
		for _, c := range b.claims {
			if c.end == nil || !recovers(c.end) || c.of.tampered || !v.otherCouldRecover(b, b.leaseSeen, taken) {
				continue
			}
			f.judge(!c.end.At.After(taken), c.of.id, "job %d was taken back from %s %s after the lease had expired", c.of.id, b.name(),
				c.end.At.Sub(b.leaseSeen))
		}
	}
	for _, w := range v.waits {
		if !w.recovered {
			continue
		}
		l, from := v.idleMeanwhile(w)
		f.judge(l == nil, w.of.id, "job %d was taken back at %s and waited until %s, while %s had room from %s", w.of.id, clock(w.since.At),
			clock(w.to), nameOf(l), clock(from))
	}
}

// otherCouldRecover reports whether any pod other than b's could perform recovery throughout the given period.
func (v *view) otherCouldRecover(b *podID, from, to time.Time) bool {
	for _, l := range v.lives {
		if l != b.life && !l.remote() && v.able(l, from, to) {
			return true
		}
	}
	return false
}

func nameOf(l *life) string {
	if l == nil {
		return "nobody"
	}
	return l.Pod
}
