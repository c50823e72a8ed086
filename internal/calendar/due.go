package calendar

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

// schedulesAtOnce is the number of schedules that one transaction decides about. If one of them fails, they are decided one by one. A
// commit costs as much as three to five of them; larger transactions would only lock them for longer.
const schedulesAtOnce = 50

// idTries is the number of times that jobs get new ids because theirs are in use.
const idTries = 3

// sweep decides about due schedules, until all that are left are locked by other pods. Not safe for concurrent use.
type sweep struct {
	c        *Calendar
	at       *time.Time // the database's now, for tests; nil: its real time
	ids      []int64    // reserved for jobs and not used yet
	skipped  []string   // failed, or left to other pods
	oneByOne int        // how many to decide one by one

	began, last time.Time // the times of the first decision and of the latest, by the database's clock
}

// FireDue decides about all due schedules: by the database's clock, or, for tests, at a given time.
func (c *Calendar) FireDue(ctx context.Context, at *time.Time) {
	s := &sweep{c: c, at: at}
	for ctx.Err() == nil && s.next(ctx) {
	}
}

// next decides about the schedules that have been due longest, and reports whether there may be more. If deciding about them together
// fails, it decides one by one, so that one failure does not block the others.
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
	s.c.o.Wake() // in case it was committed despite the error
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

// shortOfIDs is the error of a decision that needs this number of job ids.
type shortOfIDs int

func (n shortOfIDs) Error() string { return fmt.Sprintf("%d job ids are needed", int(n)) }

// decideSome decides about the schedules that have been due longest, at most limit. Their occurrences, the jobs and the next planned times
// are one commit. A commit whose reply is lost is not read back, because the next sweep reads the rows. After an error it returns the
// schedules concerned.
//
// The transaction has one connection and never waits for a second one, so job ids are reserved before it. A first try reports how many it
// needs, because usually no schedule is due.
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

// decidingSince returns when this sweep began to decide. An occurrence that was on time then is late only because many were due. A pod that was
// frozen in between has not been deciding since then.
func (s *sweep) decidingSince(now time.Time) time.Time {
	if pause := now.Sub(s.last); s.last.IsZero() || pause < 0 || pause > job.MissedAfter {
		s.began = now
	}
	s.last = now
	return s.began
}

// limitOccurrences cuts a list whose occurrences are too many for one transaction; the next one decides the rest.
func limitOccurrences(list []decision) []decision {
	fires := 0
	for i, d := range list {
		if fires += len(d.fires); fires > onTimeAtOnce && i > 0 {
			return list[:i]
		}
	}
	return list
}
