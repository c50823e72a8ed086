package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// schedulesAtOnce is how many schedules one transaction decides about, and so how many others have to be decided one by one when one of
// them cannot be. A commit costs as much as three to five of them; more at once would only keep them locked for longer.
const schedulesAtOnce = 50

// look decides what is due, until nothing is left that other pods do not have in hand. One goroutine has it.
type look struct {
	r        *Runner
	at       *time.Time // the database's now, for tests; nil: as it says
	ids      []int64    // for jobs, reserved and not used yet
	passOver []string   // could not be decided, or is left to others
	alone    int        // how many are to be decided one by one

	began, last time.Time // by the database's clock: the first decision, and the latest
}

// fireDue decides all fires that are due. The moment is the database's now; at says otherwise, for tests.
func (r *Runner) fireDue(ctx context.Context, at *time.Time) {
	l := &look{r: r, at: at}
	for ctx.Err() == nil && l.goesOn(ctx) {
	}
}

// goesOn decides about the schedules that have been due longest, and reports whether there may be more. When they cannot be decided
// together, they are one by one, so that one that cannot be keeps none of the others.
func (l *look) goesOn(ctx context.Context) bool {
	limit := schedulesAtOnce
	if l.alone > 0 {
		l.alone--
		limit = 1
	}
	list, err := l.decideSome(ctx, limit)
	switch {
	case err == nil:
		for _, d := range list {
			l.r.fired(ctx, d)
			if d.leave {
				l.passOver = append(l.passOver, d.Name)
			}
		}
		return len(list) > 0
	case ctx.Err() != nil:
		return false
	}
	l.r.wake() // should it have been committed after all
	if len(list) > 1 {
		l.alone = len(list)
		return true
	}
	name := ""
	if len(list) == 1 {
		name = list[0].Name
	}
	l.r.log.WarnContext(ctx, "schedule could not be fired, the next heartbeat tries again", telemetry.Schedule, name, telemetry.Err, l.r.dbError(err))
	if name == "" || slices.Contains(l.passOver, name) {
		return false
	}
	l.passOver = append(l.passOver, name)
	return true
}

// shortOfIDs says how many job ids a decision needs.
type shortOfIDs int

func (n shortOfIDs) Error() string { return fmt.Sprintf("%d job ids are needed", int(n)) }

// decideSome decides about the schedules that have been due longest, at most limit. Their fires, the jobs of these and the moments of
// the next ones are one commit; a commit whose reply is lost is not asked for, since the rows tell whoever looks next. With an error it
// names those that it was about.
//
// The transaction has one connection and never waits for a second one, so job ids are seen to before it: not at first, since as a rule
// nothing is due, and no id is to be lost for that.
func (l *look) decideSome(ctx context.Context, limit int) (list []decided, err error) {
	for try := 0; ; {
		err = l.r.front.Tx(ctx, func(tx pgx.Tx) error {
			list = nil
			due, err := l.r.front.TakeDue(ctx, tx, l.r.calendar.looksAfter(), l.passOver, l.at, limit)
			if err != nil || len(due) == 0 {
				return err
			}
			now := due[0].Now
			list = enough(l.r.judge(due, l.present(now)))
			return l.r.decideIn(ctx, tx, list, l.ids)
		})
		if l.r.front.IDTaken(err) && try < idTries {
			l.r.front.DropIDs()
			l.ids = nil
			try++
			continue
		}
		short, ok := errors.AsType[shortOfIDs](err)
		if !ok {
			break
		}
		more, err := l.r.front.NewIDs(ctx, int(short)-len(l.ids))
		if err != nil {
			return nil, err
		}
		l.ids = append(l.ids, more...)
	}
	used := 0
	for _, d := range list {
		used += d.used
	}
	l.ids = l.ids[min(used, len(l.ids)):]
	return list, err
}

// present says since when this look has been at work: whatever was on time then is late for no other reason than that much was due. A
// pod that was frozen in between was not there meanwhile.
func (l *look) present(now time.Time) time.Time {
	if pause := now.Sub(l.last); l.last.IsZero() || pause < 0 || pause > job.MissedAfter {
		l.began = now
	}
	l.last = now
	return l.began
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
