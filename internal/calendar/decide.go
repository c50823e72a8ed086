package calendar

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// Bounds of one decision.
const (
	countMissedTo = 1000 // missed fires that are counted
	onTimeAtOnce  = 1000 // fires on time of one transaction; the next one decides the rest
)

// decideFires decides about the fires in [from, now]: those on time fire each, the others by the policy. A fire is on time if it was at
// since, the moment from which on this pod has been deciding. Missed ones that make no job are one fire, the latest of them, which counts
// those before it. next is the first fire that is not decided; zero: there is none.
func decideFires(cal *scheduler.Calendar, s job.ScheduleSetting, from, now, since time.Time) (list []job.Fire, next time.Time) {
	first := planned(cal, from)
	onTime := since.Add(-job.MissedAfter)
	if !first.IsZero() && first.Before(onTime) {
		list = missed(cal, s, first, onTime)
		first = cal.Next(onTime.Add(-time.Microsecond))
	}
	for n := 0; n < onTimeAtOnce && !first.IsZero() && !first.After(now); n++ {
		list = append(list, job.Fire{FireAt: first, Outcome: job.FireFired})
		first = cal.Next(first)
	}
	return list, first
}

// planned is the fire that was planned for a moment: the one of that moment, as a rule. A pod whose zones are of another year may have
// planned it for another hour, or an operator's SQL: then the fire nearest to it is meant. One that was decided before is
// not decided again.
func planned(cal *scheduler.Calendar, from time.Time) time.Time {
	following := cal.Next(from.Add(-time.Microsecond)) // from itself, should it be a fire: the database counts microseconds
	if following.Equal(from) {
		return following
	}
	before := cal.Latest(time.Time{}, from)
	if before.IsZero() || !following.IsZero() && following.Sub(from) < from.Sub(before) {
		return following
	}
	return before
}

// missed says what becomes of the fires in [first, end), of which there is one at least.
func missed(cal *scheduler.Calendar, s job.ScheduleSetting, first, end time.Time) []job.Fire {
	want := 1
	if s.Missed == job.MissedCatchUp {
		want = s.CatchUp
	}
	count := 0
	for f := first; count <= countMissedTo && !f.IsZero() && f.Before(end); f = cal.Next(f) {
		count++
	}
	// Backwards, since it is the latest that count: each is the latest before the one after it.
	latest := make([]time.Time, 0, min(want, count)+1)
	for before := end; len(latest) <= want; {
		f := cal.Latest(first.Add(-time.Microsecond), before.Add(-time.Microsecond))
		if f.IsZero() {
			break
		}
		latest, before = append(latest, f), f
	}
	rest := max(0, min(count, countMissedTo)-want)
	switch s.Missed {
	case job.MissedSkip:
		return []job.Fire{{FireAt: latest[0], Outcome: job.FireMissed, Missed: rest, Message: "no pod was alive, and missed occurrences are skipped"}}
	case job.MissedCatchUp:
		var list []job.Fire
		if len(latest) > want {
			list = append(list, job.Fire{FireAt: latest[want], Outcome: job.FireMissed, Missed: max(0, rest-1), Message: "no pod was alive, and only later occurrences are caught up"})
			latest = latest[:want]
		}
		for i := len(latest) - 1; i >= 0; i-- {
			list = append(list, job.Fire{FireAt: latest[i], Outcome: job.FireFired})
		}
		return list
	default:
		return []job.Fire{{FireAt: latest[0], Outcome: job.FireFired, Missed: rest}}
	}
}
