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
