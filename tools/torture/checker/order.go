package checker

import (
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// orderHolds (I17) checks that a claim never skips a job in the same lane that should go first: one with a higher priority, or with the
// same priority and an earlier due time. A submission that starts on insert must not pass a job of equal or higher priority, and a next
// step must not pass a job of higher priority.
//
// A claim is compared only with jobs that it must have seen and could have taken. These jobs were visible before the claim began, according
// to the response to their submission, and were still waiting after the claim was committed, according to the first line of its handler.
// They have no subject, key, unique key or crash, each of which may delay a job. The claiming process handles their kind, and no operator
// command affects them during that time. The claimed jobs have no subject, because the next job of a subject is claimed out of turn when
// the subject becomes free. Nothing disturbs the database during that time.
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
		if !w.born && w.of.job.Subject == "" && w.of.key == "" && w.of.job.UniqueKey == nil && !w.crashed && w.ranked {
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

// seen returns the time from which every process could see a waiting job, regardless of the load. For a submitted job, this is the time of
// the response. The event's time would be too early, because it is the start time of a transaction that may have contained several
// statements. If the transaction may have been open for longer than claims allow for, the job may be hidden behind a low-water mark until
// the next poll.
func (v *view) seen(w *wait) time.Time {
	if w.since.Event == "job.handed_back" { // the job's due time may be older than low-water marks, which remain valid until the next poll and are then read again
		return v.visibleFrom(w).Add(v.run.Settings.Poll + markScan)
	}
	if w.since.Event != "job.enqueued" || w.of.job.ParentID != nil {
		return v.visibleFrom(w)
	}
	at := w.to // if there is no response, the job is not compared
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

// markScan is the maximum duration of the scan that replaces expired marks on a machine that is busy with faults. Until the scan ends,
// claims keep starting at the expired marks.
const markScan = time.Second

// openWithin limits how long a submission's transaction may stay open before claims may miss the job. It mirrors freshSince in the claim
// statement.
const openWithin = 200 * time.Millisecond

// visibleFrom returns the time from which every process must have been able to see a waiting job: the time of the response to its
// submission, or a short time after the event that made it due.
func (v *view) visibleFrom(w *wait) time.Time {
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

// heldUp reports whether a job may have become visible long after its event's time. The event carries the time at which its transaction
// began, and each later statement in the transaction still had to reach the database.
func (v *view) heldUp(w *wait) bool {
	from := w.since.At
	return (w.since.Event == "job.enqueued" || w.since.Event == "job.operator_retry") && !v.trouble.stillForAll(from, from.Add(v.commitWithin()))
}

// commitWithin returns how long a transaction may take to commit if nothing disturbs the database.
func (v *view) commitWithin() time.Duration { return v.slack / 2 }

// goesFirst compares a claim with the jobs that were waiting throughout the claim.
func (v *view) goesFirst(w *wait, waiting []*wait, f *Finding) {
	at := w.claim.event.At
	over := at.Add(v.commitWithin())
	if start := w.claim.start(); start != nil {
		over = earlier(over, start.T)
	}
	b := v.podID(w.claim.podID)
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
			f.accuse(w.of.id, "job %d (priority %d, due %s) was claimed at %s, while job %d (priority %d, due %s) waited in lane %q until %s", w.of.id,
				claimed, clock(w.ready), clock(at), p.of.id, passed, clock(p.ready), w.of.job.Lane, clock(p.to))
			break
		}
	}
	if compared {
		f.Checked++
	}
}

// unknownFor limits how long a command without a response may keep its row locked after the client has given up. The command's pod may be
// frozen.
const unknownFor = 10 * time.Second

// touched reports whether a command, such as a cancel, may have locked the row of a waiting job.
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

// niced reports whether a job's priority changed during the given period, or so shortly before it that a claim may have seen either
// priority.
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

// priorityAt returns a job's priority at the given time. It starts with the priority in the job's row and undoes later changes.
func (s *story) priorityAt(at time.Time) int {
	priority := s.job.Priority
	for i := len(s.events) - 1; i >= 0 && s.events[i].At.After(at); i-- {
		if s.events[i].Event == "job.niced" {
			priority = fieldsOf(s.events[i]).Before
		}
	}
	return priority
}
