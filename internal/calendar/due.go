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

// schedulesAtOnce is the number of schedules that one transaction decides about, and that are decided one by one when one of them cannot be. A commit costs as much as three to five of them; more at once would only keep them locked for longer.
const schedulesAtOnce = 50

// idTries is the number of times that jobs get other ids because theirs are in use.
const idTries = 3

// sweep decides about due schedules, until none is left that other pods have not locked. Not safe for concurrent use.
type sweep struct {
	c        *Calendar
	at       *time.Time // the database's now, for tests; nil: as it says
	ids      []int64    // for jobs, reserved and not used yet
	passOver []string   // could not be decided, or is left to others
	alone    int        // how many are to be decided one by one

	began, last time.Time // by the database's clock: the first decision, and the latest
}

// FireDue decides about all schedules that are due: by the database's clock, or, for tests, at a moment.
func (c *Calendar) FireDue(ctx context.Context, at *time.Time) {
	s := &sweep{c: c, at: at}
	for ctx.Err() == nil && s.next(ctx) {
	}
}

// next decides about the schedules that have been due longest, and reports whether there may be more. When they cannot be decided
// together, they are one by one, so that one that cannot be keeps none of the others.
func (s *sweep) next(ctx context.Context) bool {
	limit := schedulesAtOnce
	if s.alone > 0 {
		s.alone--
		limit = 1
	}
	list, err := s.decideSome(ctx, limit)
	switch {
	case err == nil:
		for _, d := range list {
			s.c.report(ctx, d)
			if d.leave {
				s.passOver = append(s.passOver, d.Name)
			}
		}
		return len(list) > 0
	case ctx.Err() != nil:
		return false
	}
	s.c.o.Wake() // in case it has been committed after all
	if len(list) > 1 {
		s.alone = len(list)
		return true
	}
	name := ""
	if len(list) == 1 {
		name = list[0].Name
	}
	s.c.o.Log.WarnContext(ctx, "schedule could not fire, retrying with the next heartbeat", telemetry.Schedule, name, telemetry.Err, s.c.o.Count(err))
	if name == "" || slices.Contains(s.passOver, name) {
		return false
	}
	s.passOver = append(s.passOver, name)
	return true
}

// shortOfIDs is the error of a decision that needs this number of job ids.
type shortOfIDs int

func (n shortOfIDs) Error() string { return fmt.Sprintf("%d job ids are needed", int(n)) }

// decideSome decides about the schedules that have been due longest, at most limit. Their fires, the jobs of these and the moments of
// the next ones are one commit; a commit whose reply is lost is not read back: the next sweep reads the rows. With an error it
// returns the schedules that it was about.
//
// The transaction has one connection and never waits for a second one, so job ids are reserved before it: after a first try that reports how many
// it needs, since as a rule nothing is due.
func (s *sweep) decideSome(ctx context.Context, limit int) (list []decided, err error) {
	for try := 0; ; {
		err = s.c.o.Store.Tx(ctx, func(tx pgx.Tx) error {
			list = nil
			due, err := admin.TakeDue(ctx, s.c.o.Store, tx, s.c.o.Kinds(), s.passOver, s.at, limit)
			if err != nil || len(due) == 0 {
				return err
			}
			since := s.present(due[0].Now)
			for _, d := range due {
				list = append(list, decideSchedule(d, since))
			}
			list = enough(list)
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

// present returns since when this sweep has been deciding: a fire that was on time then is late only because much was due. A pod that was
// frozen in between was not deciding meanwhile.
func (s *sweep) present(now time.Time) time.Time {
	if pause := now.Sub(s.last); s.last.IsZero() || pause < 0 || pause > job.MissedAfter {
		s.began = now
	}
	s.last = now
	return s.began
}

// enough cuts a list where its fires become too many for one transaction; the rest is due for the next one.
func enough(list []decided) []decided {
	fires := 0
	for i, d := range list {
		if fires += len(d.fires); fires > onTimeAtOnce && i > 0 {
			return list[:i]
		}
	}
	return list
}
