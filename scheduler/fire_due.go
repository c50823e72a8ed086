package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// schedulesAtOnce is the maximum number of schedules that one transaction processes. If the transaction fails, they are processed one by
// one. A commit costs as much as three to five schedules, so larger transactions would save little and hold locks for longer.
const schedulesAtOnce = 50

// idTries is the maximum number of times that jobs are given new IDs because theirs are already in use.
const idTries = 3

// sweep processes due schedules until any that remain are locked by other pods. It is not safe for concurrent use.
type sweep struct {
	c        *Submitter
	at       *time.Time // current time for tests; nil means the database's clock
	ids      []int64    // reserved for jobs but not used yet
	skipped  []string   // names of schedules that failed or were left to other pods
	oneByOne int        // number of schedules still to be processed one by one

	began, last time.Time // when this sweep first and last processed schedules, on the database's clock
}

// FireDue processes all due schedules. It uses the database's clock or, in tests, the given time.
func (c *Submitter) FireDue(ctx context.Context, at *time.Time) {
	s := &sweep{c: c, at: at}
	for ctx.Err() == nil && s.next(ctx) {
	}
}

// next processes the schedules that have been due the longest, and reports whether there may be more. After a failure, further calls
// process them one by one, so that one schedule's failure does not block the others.
func (s *sweep) next(ctx context.Context) bool {
	limit := schedulesAtOnce
	if s.oneByOne > 0 {
		s.oneByOne--
		limit = 1
	}
	list, err := s.decideSome(ctx, limit)
	switch {
	case err == nil:
		for _, d := range list {
			s.c.report(ctx, d)
			if d.postponed {
				s.skipped = append(s.skipped, d.Name)
			}
		}
		return len(list) > 0
	case ctx.Err() != nil:
		return false
	}
	s.c.o.Wake() // the transaction may have been committed despite the error
	if len(list) > 1 {
		s.oneByOne = len(list)
		return true
	}
	name := ""
	if len(list) == 1 {
		name = list[0].Name
	}
	s.c.o.Log.WarnContext(ctx, "schedule could not fire, retrying with the next heartbeat", telemetry.Schedule, name, telemetry.Err, s.c.o.Count(err))
	if name == "" || slices.Contains(s.skipped, name) {
		return false
	}
	s.skipped = append(s.skipped, name)
	return true
}

// shortOfIDs is returned by a transaction that needs more job IDs than were reserved. Its value is the number needed.
type shortOfIDs int

func (n shortOfIDs) Error() string { return fmt.Sprintf("%d job ids are needed", int(n)) }

// decideSome processes up to limit of the schedules that have been due the longest. It writes their occurrences, jobs and next due times in
// one commit. If the reply to the commit is lost, it reads nothing back, because the next sweep reads the rows. Even after an error, it
// returns the decisions for these schedules.
//
// The transaction must not wait for a second connection, so job IDs are reserved beforehand. Usually no schedule is due, so the first
// attempt is made without reserved IDs and reports how many it needs.
func (s *sweep) decideSome(ctx context.Context, limit int) (list []decision, err error) {
	for try := 0; ; {
		err = s.c.o.Store.Tx(ctx, func(tx pgx.Tx) error {
			list = nil
			due, err := admin.TakeDue(ctx, s.c.o.Store, tx, s.c.o.Kinds(), s.skipped, s.at, limit)
			if err != nil || len(due) == 0 {
				return err
			}
			since := s.decidingSince(due[0].Now)
			for _, d := range due {
				list = append(list, decideSchedule(d, since))
			}
			list = limitOccurrences(list)
			return s.c.decideIn(ctx, tx, list, s.ids)
		})
		if s.c.o.Store.IDTaken(err) && try < idTries {
			s.c.o.Store.DropIDs()
			s.ids = nil
			try++
			continue
		}
		short, ok := errors.AsType[shortOfIDs](err)
		if !ok {
			break
		}
		more, err := s.c.o.Store.NewIDs(ctx, int(short)-len(s.ids))
		if err != nil {
			return nil, err
		}
		s.ids = append(s.ids, more...)
	}
	used := 0
	for _, d := range list {
		used += d.used
	}
	s.ids = s.ids[min(used, len(s.ids)):]
	return list, err
}

// decidingSince returns when this sweep started to process schedules. An occurrence that was on time at that moment is late only because
// many schedules were due. If the pod has been frozen in between, the sweep counts as starting now.
func (s *sweep) decidingSince(now time.Time) time.Time {
	if pause := now.Sub(s.last); s.last.IsZero() || pause < 0 || pause > job.MissedAfter {
		s.began = now
	}
	s.last = now
	return s.began
}

// limitOccurrences truncates a list with too many occurrences for one transaction. The next transaction processes the rest.
func limitOccurrences(list []decision) []decision {
	occurrences := 0
	for i, d := range list {
		if occurrences += len(d.occurrences); occurrences > onTimeAtOnce && i > 0 {
			return list[:i]
		}
	}
	return list
}

// Limits on a single decision.
const (
	countMissedTo = 1000 // maximum number of missed occurrences that are counted
	onTimeAtOnce  = 1000 // maximum number of on-time occurrences per transaction; the next transaction processes the rest
)

// decideOccurrences decides which of the occurrences in [from, now] submit jobs. Occurrences that were on time at since, when this pod started to
// process due schedules, fire. The others were missed and are subject to the schedule's policy. Missed occurrences that submit no job are
// recorded as a single entry for the latest one, with a count of the earlier ones. The next result is the first occurrence that remains to
// be processed, or zero if there is none.
func decideOccurrences(cal *Calendar, s job.ScheduleSetting, from, now, since time.Time) (list []job.Occurrence, next time.Time) {
	first := plannedOccurrence(cal, from)
	onTime := since.Add(-job.MissedAfter)
	if !first.IsZero() && first.Before(onTime) {
		list = missedOccurrences(cal, s, first, onTime)
		first = cal.Next(onTime.Add(-time.Microsecond))
	}
	for n := 0; n < onTimeAtOnce && !first.IsZero() && !first.After(now); n++ {
		list = append(list, job.Occurrence{FireAt: first, Outcome: job.OccurrenceFired})
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
func missedOccurrences(cal *Calendar, s job.ScheduleSetting, first, end time.Time) []job.Occurrence {
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
		return []job.Occurrence{{FireAt: latest[0], Outcome: job.OccurrenceMissed, Missed: rest, Message: "no pod processed it in time, and missed occurrences are skipped"}}
	case job.MissedCatchUp:
		var list []job.Occurrence
		if len(latest) > want {
			list = append(list, job.Occurrence{FireAt: latest[want], Outcome: job.OccurrenceMissed, Missed: max(0, rest-1), Message: "no pod processed it in time, and only later occurrences are caught up"})
			latest = latest[:want]
		}
		for i := len(latest) - 1; i >= 0; i-- {
			list = append(list, job.Occurrence{FireAt: latest[i], Outcome: job.OccurrenceFired})
		}
		return list
	default:
		return []job.Occurrence{{FireAt: latest[0], Outcome: job.OccurrenceFired, Missed: rest}}
	}
}
