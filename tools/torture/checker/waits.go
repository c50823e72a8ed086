package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// wait is a period during which a job was due and pending.
type wait struct {
	of        *story
	since     *job.Event
	until     *job.Event // nil if the job was still waiting at the end
	claim     *claim     // the claim that ended the wait, or nil
	to        time.Time
	ready     time.Time // ranks the job among jobs of equal priority
	ranked    bool      // whether ready is known
	recovered bool      // the job was taken back from a dead pod and goes first in its lane
	crashed   bool      // the job has been recovered at least once, so it may have to wait its turn
	born      bool      // the job started on insert, without waiting
}

// waitsOf returns every wait in the run. A delayed job is not due, so its wait begins when it is promoted. If a job was never promoted but
// may have been submitted with a delay, it is unknown whether it was waiting.
func (v *view) waitsOf() (list []*wait) {
	delayed := map[int64]time.Duration{}
	for _, calls := range v.calls {
		for _, c := range calls {
			if c.Verb == "submit" {
				delayed[c.Job] = max(delayed[c.Job], c.Delay)
			}
		}
	}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		list = append(list, s.waits(v.run.Settings.Ended, func() bool {
			d, told := delayed[s.id]
			return s.job.ParentID != nil || told && d == 0
		})...)
	}
	return list
}

func (s *story) waits(end time.Time, atOnce func() bool) (list []*wait) {
	var (
		open    *wait
		ready   time.Time
		ranked  bool
		crashed bool
		nth     int
	)
	for i, e := range s.events {
		switch {
		case e.To != job.Pending:
			if open != nil {
				open.to, open.until = e.At, e
				if claims(e) {
					open.claim, open.born = s.claims[nth], s.claims[nth].born
				}
				open = nil
			}
			if claims(e) {
				nth++
			}
			continue
		case e.From == job.Pending && e.Event != "job.promoted":
			continue // the event is only a note
		case e.Event == "job.enqueued":
			ready, ranked = e.At, true
			next := i + 1
			for next < len(s.events) && (s.events[next].Event == "job.stale_result" || s.events[next].Event == "job.niced") {
				next++
			}
			if next < len(s.events) && s.events[next].Event == "job.promoted" {
				ranked = false
				continue
			}
			if !(next < len(s.events) && claims(s.events[next])) && !atOnce() {
				continue
			}
		case e.Event == "job.retried" || e.Event == "job.snoozed":
			ready, ranked = e.At.Add(time.Duration(fieldsOf(e).DelayMS)*time.Millisecond), true
			continue // the wait begins when the job is promoted
		case e.Event == "job.recovered":
			ready, ranked, crashed = time.Time{}, true, true
		case e.Event == "job.operator_retry":
			ready, ranked = e.At, true
		}
		if open != nil { // an approved or retried job is due at once, but claims see it only after its promotion
			open.to, open.until, open.ranked = e.At, e, false
		}
		open = &wait{of: s, since: e, to: end, ready: ready, ranked: ranked, recovered: e.Event == "job.recovered", crashed: crashed}
		list = append(list, open)
	}
	return list
}

// prompt returns the maximum time that a pod may take to find a job that it can run. Polling is the slowest way to find one.
func (v *view) prompt() time.Duration {
	return v.run.Settings.Poll + v.run.Settings.Poll/10 + v.slack
}

// freeSlots records which processes had at least two free slots at a given time.
type freeSlots struct {
	at   time.Time
	free map[*life]bool
}

// slotsOverTime derives from the samples and the ledger when each process had free slots.
func (v *view) slotsOverTime() []freeSlots {
	if v.looked != nil {
		return v.looked
	}
	busy := v.handlersAt()
	v.looked = make([]freeSlots, 0, len(v.run.Samples))
	for i := range v.run.Samples {
		sample := &v.run.Samples[i]
		rows := map[*life]int{}
		for _, r := range sample.Running {
			if b := v.podIDs[r.PodID]; b != nil && b.life != nil {
				rows[b.life]++
			}
		}
		one := freeSlots{sample.T, map[*life]bool{}}
		for _, l := range v.lives {
			if l.Ready != nil && !l.Ready.After(sample.T) && l.Ended.After(sample.T) {
				one.free[l] = max(rows[l], busy[i][l]) <= v.slotsOf(l)-2
			}
		}
		v.looked = append(v.looked, one)
	}
	return v.looked
}

// handlersAt counts the running handlers of each process at the time of each sample, according to the ledger.
func (v *view) handlersAt() []map[*life]int {
	type turn struct {
		at time.Time
		l  *life
		by int
	}
	var turns []turn
	for _, s := range v.ordered {
		for _, c := range s.claims {
			if b := v.podID(c.podID); c.start() != nil && b.life != nil {
				turns = append(turns, turn{c.start().T, b.life, 1}, turn{c.handlerEnd(b.life), b.life, -1})
			}
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(b.by, a.by)) })
	counts, now, next := make([]map[*life]int, len(v.run.Samples)), map[*life]int{}, 0
	for i := range v.run.Samples {
		for ; next < len(turns) && !turns[next].at.After(v.run.Samples[i].T); next++ {
			now[turns[next].l] += turns[next].by
		}
		counts[i] = map[*life]int{}
		for l, n := range now {
			counts[i][l] = n
		}
	}
	return counts
}

// handlerEnd returns a time by which the claim's handler must have returned: the time of its last line or, without one, the end of its
// process.
func (c *claim) handlerEnd(l *life) time.Time {
	if c.done != nil {
		return c.done.T
	}
	return l.Ended
}

// idleMeanwhile finds a process that could have run a waiting job and had free slots for longer than it may take to find the job. A process
// that is claiming jobs ahead of the waiting job does not count as idle even though its slots are free, because claiming can take a while
// on a busy machine. Jobs that may have other reasons to wait are skipped: those in limited lanes, those with a subject or unique
// key, those whose key may have no free place, and those with crashes.
func (v *view) idleMeanwhile(w *wait) (idle *life, from time.Time) {
	enough, since := v.prompt()+v.standBy(w.of.job.Lane, w.since.At, w.to), w.since.At
	if w.of.key != "" {
		enough += v.prompt() // one poll admits the job, and another one finds it
	}
	if v.heldUp(w) {
		since = v.visibleFrom(w)
	}
	if w.to.Sub(since) < enough || w.of.job.Subject != "" || w.of.job.UniqueKey != nil || w.of.job.Crashes > 1 {
		return nil, from
	}
	told := v.run.Settings.Heartbeat + v.slack // how long a lane change may take to reach every pod
	looks := v.slotsOverTime()
	first, _ := slices.BinarySearchFunc(looks, since, func(l freeSlots, at time.Time) int { return l.at.Compare(at) })
	began, before := map[*life]time.Time{}, since
	for _, look := range looks[first:] {
		if look.at.After(w.to) {
			break
		}
		from := before
		before = look.at
		for _, l := range v.lives {
			if !look.free[l] || v.claimsAhead(l, w, from, look.at) {
				delete(began, l)
				continue
			}
			if began[l].IsZero() {
				began[l] = look.at
			}
			if look.at.Sub(began[l]) >= enough && v.able(l, began[l], look.at) && l.knows(w.of.job.Kind) &&
				(v.lanes.free(w.of.job.Lane, began[l].Add(-told), look.at) || v.noneStarts(w.of.job.Lane, began[l], look.at)) && v.placeFor(w.of, began[l].Add(-told), look.at) {
				return l, began[l]
			}
			if look.at.Sub(began[l]) >= enough {
				began[l] = began[l].Add(v.run.Settings.Poll / 2) // the process could not work throughout this time, so try a later start
			}
		}
	}
	return nil, from
}

// claimsAhead reports whether, during the given period, a process claimed a job that is ahead of the waiting job in its lane.
func (v *view) claimsAhead(l *life, w *wait, from, to time.Time) bool {
	if v.claimed == nil {
		v.claimed = map[*life][]*wait{}
		for _, c := range v.waits {
			if c.claim != nil && !c.born {
				of := v.podID(c.claim.podID).life
				v.claimed[of] = append(v.claimed[of], c)
			}
		}
		for _, list := range v.claimed {
			slices.SortFunc(list, func(a, b *wait) int { return a.claim.event.At.Compare(b.claim.event.At) })
		}
	}
	list := v.claimed[l]
	first, _ := slices.BinarySearchFunc(list, from, func(c *wait, at time.Time) int { return c.claim.event.At.Compare(at) })
	for _, c := range list[first:] {
		at := c.claim.event.At
		if at.After(to) {
			return false
		}
		mine, other := w.of.priorityAt(at), c.of.priorityAt(at)
		if c.of.job.Lane == w.of.job.Lane && (other > mine || other == mine && c.ready.Before(w.ready)) {
			return true
		}
	}
	return false
}

// knows reports whether a process has run jobs of a kind.
func (l *life) knows(kind string) bool {
	return slices.ContainsFunc(l.podIDs, func(b *podID) bool { return b.kinds[kind] })
}
