package checker

import "time"

// orphansRecovered (I10): a pod whose lease has ended is declared dead, and its jobs are taken back, within a poll of the
// end of its lease, as long as another pod is well; and a job that was taken back runs again as soon as somebody who can
// run it has room. The end of a lease is known where a sample saw it and a later heartbeat would have moved it.
func orphansRecovered(v *view, f *Finding) {
	for _, b := range v.boots {
		if !b.lapsed || b.leaseSeen.IsZero() || !b.closed.Before(b.seen.Add(v.run.Settings.Lease)) || v.skewedAt(b.closed) {
			continue
		}
		due := b.leaseSeen.Add(v.prompt())
		if v.wellBesides(b, b.leaseSeen, due) {
			f.judge(!b.closed.After(due), 0, "%s was declared dead %s after its lease had ended", b.name(), b.closed.Sub(b.leaseSeen))
		}
		taken := later(b.closed, due).Add(time.Second) // a row that somebody held is taken with the next look
		for _, c := range b.claims {
			if c.end == nil || !recovers(c.end) || c.of.tampered || !v.wellBesides(b, b.leaseSeen, taken) {
				continue
			}
			f.judge(!c.end.At.After(taken), c.of.id, "job %d was taken back from %s %s after the end of the lease", c.of.id, b.name(),
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

// wellBesides reports whether a pod other than that of b could look after the others from one moment to another.
func (v *view) wellBesides(b *boot, from, to time.Time) bool {
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
