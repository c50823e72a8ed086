package runner

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// overdueAfter is for how many of its intervals a chore is left to the pod that leads. One that has not been begun for so long is
	// done by another pod: the one that leads may be frozen, with its session and its lock alive.
	overdueAfter = 3
	// restAtMost bounds the rest between two batches of a chore, which is as long as the batch before it took.
	restAtMost = 200 * time.Millisecond
)

var errLeadLost = errors.New("another pod leads the maintenance")

// turn is this pod's part in one chore: whether it is to do it now, and if it is to go on. It belongs to the goroutine of the chore.
type turn struct {
	chore
	r    *Runner
	lead *leader

	role  role
	asked time.Time // the latest question for the turn of a pod that stands by
	noted time.Time // the latest note that it is at it
	began time.Time // of the current batch
}

// take does the chore if it is this pod's turn: always, when it leads; when nobody can, the first that comes; and otherwise when it
// has not been done for long. Which of several pods is the first is decided by a row, by the database's clock.
func (t *turn) take(ctx context.Context) {
	t.role = t.lead.role()
	if t.role == leads && !t.lead.still(ctx) {
		t.role = standsBy // the next look tells who leads
	}
	within := time.Duration(0)
	switch {
	case t.all:
	case t.role == shares:
		within = t.every * 8 / 10
	case t.role == standsBy:
		if within = overdueAfter * t.every; time.Since(t.asked) < within {
			return
		}
		t.asked = time.Now()
	}
	mine, err := t.r.front.TakeTurn(ctx, t.name, t.r.opts.Name, within)
	if err == nil && !mine {
		return
	}
	t.noted, t.began = time.Now(), time.Time{}
	began := time.Now()
	n := 0
	if err == nil {
		n, err = t.do(ctx)
	}
	t.end(ctx, n, time.Since(began), err)
}

// end tells what became of the chore: in the log, in the metrics and in its row.
func (t *turn) end(ctx context.Context, n int, took time.Duration, err error) {
	m, log := t.r.metrics, t.r.log
	m.Chores.WithLabelValues(t.name).Add(float64(n))
	m.ChoreSeconds.WithLabelValues(t.name).Observe(took.Seconds())
	note := store.Turn{Chore: t.name, Pod: t.r.opts.Name, Count: int64(n), Seconds: took.Seconds()}
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errLeadLost):
		log.InfoContext(ctx, "maintenance left to another pod", telemetry.Chore, t.name, telemetry.Count, n)
		return // its row is the other's
	case err != nil:
		err = t.r.dbError(err)
		m.ChoreErrors.WithLabelValues(t.name).Inc()
		log.WarnContext(ctx, "maintenance failed, next round tries again", telemetry.Chore, t.name, telemetry.Count, n, telemetry.Err, err)
		note.Error = job.Storable(err.Error(), 1000)
	default:
		m.ChoreDone.WithLabelValues(t.name).SetToCurrentTime()
		if n > 0 {
			log.InfoContext(ctx, "maintenance done", telemetry.Chore, t.name, telemetry.Count, n)
		}
	}
	if err := t.r.front.EndTurn(ctx, note); err != nil && ctx.Err() == nil {
		log.DebugContext(ctx, "the end of a chore could not be noted", telemetry.Chore, t.name, telemetry.Err, t.r.dbError(err))
	}
}

// goOn is asked before each batch: it rests for as long as the one before took, so that maintenance takes at most half of what the
// database has to give to one connection, and stops the chore when the runner stops or another pod leads.
func (t *turn) goOn(ctx context.Context) error {
	if !t.began.IsZero() && !wait.For(ctx, min(time.Since(t.began), restAtMost)) || ctx.Err() != nil {
		return ctx.Err()
	}
	if !t.all && t.role == leads && !t.lead.still(ctx) {
		return errLeadLost
	}
	if time.Since(t.noted) > t.every/2 { // a chore that takes long is not overdue
		if _, err := t.r.front.TakeTurn(ctx, t.name, t.r.opts.Name, 0); err != nil {
			return err
		}
		t.noted = time.Now()
	}
	t.began = time.Now()
	return nil
}
