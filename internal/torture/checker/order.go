package checker

import (
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// orderHolds (I17): whoever claims a job of a lane leaves nobody waiting there who goes before it: of a higher priority, or
// of the same and due for longer. Born running, a submission passes nobody who is as urgent, and a step of a chain nobody
// who is more urgent.
//
// Compared is a claim with those jobs of its lane that the claim must have seen and could have had: they were there before
// it began, by the answer to their submission, and were still waiting after it was committed, by the first line of its
// handler. Those that wait have no subject, no unique key and no crash, which are reasons to be passed by, and are of a
// kind that the claiming process runs; nobody commands them meanwhile. Those that were claimed have no subject, for the next
// job of a subject that becomes free is claimed out of turn. Nothing disturbs the database meanwhile.
func orderHolds(v *view, f *Finding) {
	type lane struct{ passed, claimed []*wait }
	byName, names := map[string]*lane{}, []string{}
	there := map[*wait]time.Time{}
	for _, w := range v.waits {
		l := byName[w.of.job.Lane]
		if l == nil {
			l = &lane{}
			byName[w.of.job.Lane] = l
			names = append(names, w.of.job.Lane)
		}
		if w.claim != nil && (w.born || w.ranked && w.of.job.Subject == "") {
			l.claimed = append(l.claimed, w)
		}
		if !w.born && w.of.job.Subject == "" && w.of.job.UniqueKey == nil && !w.crashed && w.ranked {
			if there[w] = v.seen(w); there[w].Before(w.to) {
				l.passed = append(l.passed, w)
			}
		}
	}
	for _, name := range names {
		l := byName[name]
		slices.SortFunc(l.claimed, func(a, b *wait) int { return a.claim.event.At.Compare(b.claim.event.At) })
		slices.SortFunc(l.passed, func(a, b *wait) int { return there[a].Compare(there[b]) })
		var waiting []*wait
		next := 0
		for _, w := range l.claimed {
			at := w.claim.event.At
			for ; next < len(l.passed) && there[l.passed[next]].Before(at); next++ {
				waiting = append(waiting, l.passed[next])
			}
			waiting = slices.DeleteFunc(waiting, func(p *wait) bool { return !p.to.After(at) })
			if len(waiting) > 0 {
				v.goesFirst(w, waiting, f)
			}
		}
	}
}

// seen is when a job that waits could be seen by everybody, whatever the load: a submitted one when that had been answered,
// for its events bear the beginning of a transaction that may have been of several statements. One whose transaction may have been open
// for longer than claims allow for can be hidden by a low-water mark, at most until the next poll.
func (v *view) seen(w *wait) time.Time {
	if w.since.Event != "job.enqueued" || w.of.job.ParentID != nil {
		return v.there(w)
	}
	at := w.to // without an answer it is not compared
	for _, c := range v.calls[w.of.id] {
		if c.Verb == "submit" && c.Outcome == history.OK {
			answered := c.Ended
			if answered.Sub(w.since.At) > openWithin {
				answered = answered.Add(v.run.Settings.Poll)
			}
			at = earlier(at, answered)
		}
	}
	return at
}

// openWithin is how long a submission may be open for claims to see it however old it is then: the moment freshSince of claims.
const openWithin = 200 * time.Millisecond

// there is when a job that waits could certainly be seen by everybody: when its submission had been answered, or else a
// while after the event that made it due.
func (v *view) there(w *wait) time.Time {
	at := w.since.At.Add(v.commitWithin())
	if v.heldUp(w) {
		at = w.to
	}
	if w.since.Event == "job.enqueued" {
		for _, c := range v.calls[w.of.id] {
			if c.Verb == "submit" && c.Outcome == history.OK {
				at = earlier(at, c.Ended)
			}
		}
	}
	return at
}

// heldUp reports whether a job may have been in the database long before it could be seen: its event bears the beginning of
// a transaction of several statements, each of which had to find its way there.
func (v *view) heldUp(w *wait) bool {
	from := w.since.At
	return (w.since.Event == "job.enqueued" || w.since.Event == "job.operator_retry") && !v.trouble.stillForAll(from, from.Add(v.commitWithin()))
}

// commitWithin is how long after its beginning a transaction has certainly been committed, where nothing disturbs the
// database.
func (v *view) commitWithin() time.Duration { return v.slack / 2 }

// goesFirst compares a claim with those that waited all the while.
func (v *view) goesFirst(w *wait, waiting []*wait, f *Finding) {
	at := w.claim.event.At
	over := at.Add(v.commitWithin())
	if start := w.claim.start(); start != nil {
		over = earlier(over, start.T)
	}
	b := v.boot(w.claim.boot)
	if b.life == nil || !v.trouble.still("", at.Add(-v.commitWithin()), over) || w.niced(v, at, over) {
		return
	}
	compared := false
	for _, p := range waiting {
		if p.of == w.of || !p.to.After(over) || !b.life.knows(p.of.job.Kind) || p.touched(v, at, over) || p.niced(v, at, over) {
			continue
		}
		compared = true
		passed, claimed := p.of.priorityAt(at), w.of.priorityAt(at)
		higher, same := passed > claimed, passed == claimed
		first := higher || same && p.ready.Add(time.Millisecond).Before(w.ready)
		if w.born {
			first = higher || same && w.of.job.ParentID == nil
		}
		if first {
			f.accuse(w.of.id, "job %d (priority %d, due %s) was claimed at %s, and job %d (priority %d, due %s) waited in lane %q until %s", w.of.id,
				claimed, clock(w.ready), clock(at), p.of.id, passed, clock(p.ready), w.of.job.Lane, clock(p.to))
			break
		}
	}
	if compared {
		f.Checked++
	}
}

// unknownFor is how long a command without an answer may hold its row after its client gave up: the pod may be frozen.
const unknownFor = 10 * time.Second

// touched reports whether a command may have locked the row of a job that waits: to note something, or to cancel it.
func (w *wait) touched(v *view, from, to time.Time) bool {
	for _, e := range w.of.events {
		if !e.At.Before(from) && !e.At.After(to) {
			return true
		}
	}
	for _, c := range v.calls[w.of.id] {
		ended := c.Ended
		if c.Outcome == history.Unknown {
			ended = ended.Add(unknownFor)
		}
		if c.Verb != "submit" && !ended.Before(from) && !c.Began.After(to) {
			return true
		}
	}
	return false
}

// niced reports whether somebody gave a job another priority so shortly before, or meanwhile, that nobody can say which one a claim saw.
func (w *wait) niced(v *view, from, to time.Time) bool {
	from = from.Add(-v.commitWithin())
	for _, e := range w.of.events {
		if e.Event == "job.niced" && !e.At.Before(from) && !e.At.After(to) {
			return true
		}
	}
	for _, c := range v.calls[w.of.id] {
		if c.Verb == "nice" && !c.Ended.Before(from) && !c.Began.After(to) {
			return true
		}
	}
	return false
}

// priorityAt is a job's priority at a moment: that of its row, before what was changed since.
func (s *story) priorityAt(at time.Time) int {
	priority := s.job.Priority
	for i := len(s.events) - 1; i >= 0 && s.events[i].At.After(at); i-- {
		if s.events[i].Event == "job.niced" {
			priority = fieldsOf(s.events[i]).Before
		}
	}
	return priority
}
