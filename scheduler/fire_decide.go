package scheduler

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Limits on a single decision.
const (
	countMissedTo = 1000 // maximum number of missed occurrences that are counted
	onTimeAtOnce  = 1000 // maximum number of on-time occurrences per transaction; the next transaction processes the rest
)

// decideOccurrences decides which of the occurrences in [from, now] submit jobs. Occurrences that were on time at since, when this pod started to
// process due schedules, fire. The others were missed and are subject to the schedule's policy. Missed occurrences that submit no job are
// recorded as a single entry for the latest one, with a count of the earlier ones. The next result is the first occurrence that remains to
// be processed, or zero if there is none.
func decideOccurrences(cal *Calendar, s job.ScheduleSetting, from, now, since time.Time) (list []job.Fire, next time.Time) {
	first := plannedOccurrence(cal, from)
	onTime := since.Add(-job.MissedAfter)
	if !first.IsZero() && first.Before(onTime) {
		list = missedOccurrences(cal, s, first, onTime)
		first = cal.Next(onTime.Add(-time.Microsecond))
	}
	for n := 0; n < onTimeAtOnce && !first.IsZero() && !first.After(now); n++ {
		list = append(list, job.Fire{FireAt: first, Outcome: job.FireFired})
		first = cal.Next(first)
	}
	return list, first
}

// plannedOccurrence returns the occurrence that was planned for the time from, which is usually itself an occurrence. But a pod with a
// different version of the time zone data, or an operator using SQL, may have planned another time. In that case, the nearest occurrence
// counts. Occurrences that have already been processed are not processed again.
func plannedOccurrence(cal *Calendar, from time.Time) time.Time {
	following := cal.Next(from.Add(-time.Microsecond)) // equals from if that is an occurrence: the database counts microseconds
	if following.Equal(from) {
		return following
	}
	before := cal.Latest(time.Time{}, from)
	if before.IsZero() || !following.IsZero() && following.Sub(from) < from.Sub(before) {
		return following
	}
	return before
}

// missedOccurrences applies the policy to the missed occurrences in [first, end), of which there must be at least one.
func missedOccurrences(cal *Calendar, s job.ScheduleSetting, first, end time.Time) []job.Fire {
	want := 1
	if s.Missed == job.MissedCatchUp {
		want = s.CatchUp
	}
	count := 0
	for f := first; count <= countMissedTo && !f.IsZero() && f.Before(end); f = cal.Next(f) {
		count++
	}
	// Only the latest occurrences are needed, so work backwards: each step finds the latest occurrence before the previous result.
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
		return []job.Fire{{FireAt: latest[0], Outcome: job.FireMissed, Missed: rest, Message: "no pod processed it in time, and missed occurrences are skipped"}}
	case job.MissedCatchUp:
		var list []job.Fire
		if len(latest) > want {
			list = append(list, job.Fire{FireAt: latest[want], Outcome: job.FireMissed, Missed: max(0, rest-1), Message: "no pod processed it in time, and only later occurrences are caught up"})
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
