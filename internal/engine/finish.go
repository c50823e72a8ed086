package engine

import (
	"github.com/trapeze-run/trapeze/internal/work"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// ending prepares the end of a claim and its hand-off to the next step.
func (r *Engine) ending(one *Run, e store.Ending, next *store.NewJob) *flush {
	e.ID, e.Fence, e.Next, e.Branch = one.Lease.JobID, one.Lease.Fence, next, one.Claimed.Branch
	if next != nil {
		next.Starts = r.mayStart(one, next)
		r.flights.add(next.ID)
	}
	return &flush{one: one, ending: e, next: next}
}

// finish writes the end of a claim and hands over to the next step, by group commit. It returns the next step when that
// is ours already.
func (r *Engine) finish(one *Run, e store.Ending, next *store.NewJob) *Run {
	w := r.ending(one, e, next)
	w.ended, w.err = r.flusher.submit(one, w.ending)
	return r.pursue(w)
}

// landed goes on after ends that nobody waited for, on the flusher's goroutine: what may take time has one of its own. The
// slots that come free are free together, so that one claim fills them all.
func (r *Engine) landed(ends []*flush) {
	var lanes []string
	for _, w := range ends {
		quick := w.err == nil && w.ended.State == job.Succeeded && (w.next == nil || w.ended.ChildRunning) &&
			!r.Log.Enabled(w.one.Ctx, slog.LevelDebug)
		if !quick {
			go func() {
				if r.goOn(w) {
					r.slotFree(w.one.Claimed.Lane)
				}
			}()
		} else if lane := w.one.Claimed.Lane; r.goOn(w) && !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	for _, lane := range lanes {
		r.slotFree(lane)
	}
}

// goOn closes the claim of an end that was written, or not, and has the next step performed. It reports whether the slot of
// its lane is free.
func (r *Engine) goOn(w *flush) bool {
	next := r.pursue(w)
	free := r.close(w.one, next)
	if next != nil {
		r.workers.Give(next)
	}
	return free
}

// pursue sees to it that a claim ends when its end could not be written at first. It returns the next step when that is ours
// already.
func (r *Engine) pursue(w *flush) *Run {
	one, e, next, ended, err := w.one, w.ending, w.next, w.ended, w.err
	if child := next; child != nil {
		defer func() { r.flights.remove(child.ID) }()
	}
	for try := 0; next != nil && r.Store.IDTaken(err) && try < idTries; try++ {
		if err = r.renumberNext(one, next); err == nil {
			ended, err = r.flusher.submit(one, e)
		}
	}
	if err != nil && store.Refused(err) {
		// What the handler returned cannot be stored: its failure can.
		r.steppedBack(one, next)
		r.Log.ErrorContext(one.Ctx, "result could not be stored", append(one.attrs(), telemetry.Err, err)...)
		e = store.Ending{ID: e.ID, Fence: e.Fence, Branch: e.Branch, State: job.Failed, Outcome: job.Error, Reason: job.ReasonUnstorable, Class: job.ClassUnstorable,
			Error: job.Storable("what the handler returned could not be stored: "+err.Error(), 1000)}
		next = nil
		ended, err = r.flusher.submit(one, e)
	}
	// Neither is the database away nor the payload at fault: a partition is missing, a right was taken. A person must see to
	// it; until then the job has not ended, and keeps its slot.
	for backoff := wait.NewBackoff(); err != nil && !errors.Is(err, job.ErrLeaseLost) && !one.IsLost(); {
		r.Log.ErrorContext(one.Ctx, "end of job could not be written", append(one.attrs(), telemetry.Err, err)...)
		if !backoff.Wait(r.flusher.life()) {
			break
		}
		ended, err = r.flusher.submit(one, e)
	}
	return r.finished(one, next, e, ended, err)
}

// finished takes note of an end that was written as ended says, or refused, and makes the claim of the next step.
func (r *Engine) finished(one *Run, next *store.NewJob, e store.Ending, ended store.Ended, err error) *Run {
	if err != nil {
		r.steppedBack(one, next)
		if errors.Is(err, job.ErrLeaseLost) {
			r.stale(one, e.Error, err)
		} else {
			// The pod is stopping and the database does not answer: the lease runs out, and the net has it.
			r.Log.ErrorContext(one.Ctx, "end of job was not written", append(one.attrs(), telemetry.Err, err)...)
		}
		return nil
	}
	_ = failpoint.Hit(failpoint.FinishCommitted)
	// One that is cancelled all the same was told so by its row, or stopped by somebody else; one that had ended may have ended otherwise:
	// who asks has to look.
	one.Wrote.Store(!ended.Found && (ended.State == e.State || ended.State != job.Cancelled))
	committed := time.Now()
	if !ended.Found || ended.Here {
		r.countEnd(one.kind, ended.State, e.Class)
	}
	one.span.State(ended.State)
	r.logEnd(one, e, ended.State)
	if one.Claimed.Subject != "" {
		r.freed.add(store.Key{Kind: one.Claimed.Kind, Subject: one.Claimed.Subject})
		r.Poller.Wake()
	}
	if ended.OffBalance != nil {
		r.Unbalanced.add(*ended.OffBalance)
	}
	if next == nil {
		return nil
	}
	var child *Run
	if ended.ChildRunning {
		if child = r.NewRun(born(*next, committed), one.Lease.Pod); child == nil {
			r.Doubt.Raise() // stopping: the row is ours in the table and unknown here
		}
	}
	if next.Starts {
		r.Lanes.Stepped(one.Claimed.Lane, next.Lane, child != nil)
		if child != nil && next.Lane != one.Claimed.Lane {
			r.slotFree(one.Claimed.Lane)
		}
	}
	if !ended.ChildRunning {
		if ended.State == job.Succeeded {
			if next.DelayMillis > 0 {
				r.Due.parked(time.Duration(next.DelayMillis) * time.Millisecond)
				r.Poller.Nudge()
			} else {
				r.Wake()
				r.WakePeers()
			}
		}
		return nil
	}
	if child != nil {
		child.handed = committed
	}
	return child
}

// countEnd counts the end of a run, in a state that may be another than its handler asked for.
func (r *Engine) countEnd(k *Kind, state job.State, class job.ErrorClass) {
	if state != job.Failed {
		class = ""
	}
	if k.Ends == nil {
		r.Count.Ends.Count(state, class, k.Name)
		return
	}
	k.Ends.Of(state, class).Inc()
}

// steppedBack undoes what mayStart prepared.
func (r *Engine) steppedBack(one *Run, next *store.NewJob) {
	if next != nil && next.Starts {
		r.Lanes.Stepped(one.Claimed.Lane, next.Lane, false)
	}
}

// logEnd logs how a job ended: of a failure the error, which holds the stack of a panic. A cancel that was committed first wins over the
// reason that its handler gave.
func (r *Engine) logEnd(one *Run, e store.Ending, state job.State) {
	switch {
	case state == job.Failed:
		r.Log.WarnContext(one.Ctx, "job failed", append(one.attrs(), telemetry.Reason, e.Reason, telemetry.ErrorClass, e.Class,
			telemetry.ErrorCode, e.Code, telemetry.Err, e.Error)...)
	case state == job.Cancelled:
		r.Log.WarnContext(one.Ctx, "job cancelled", append(one.attrs(), telemetry.Reason, job.ReasonCancelled)...)
	case r.Log.Enabled(one.Ctx, slog.LevelDebug):
		r.Log.DebugContext(one.Ctx, "job succeeded", one.attrs()...)
	}
}

// finishInTx ends a claim in a transaction of the host's pool, with the handler's own writes in it: fence, writes, end
// and next step are one commit. The writes run again when the connection broke before the commit; only one commit counts.
func (r *Engine) finishInTx(one *Run, o *work.Outcome, e store.Ending, next *store.NewJob) *Run {
	e.ID, e.Fence, e.Next, e.Branch = one.Lease.JobID, one.Lease.Fence, next, one.Claimed.Branch
	if next != nil {
		next.Starts = r.mayStart(one, next)
		r.flights.add(next.ID)
		defer func() { r.flights.remove(next.ID) }()
	}
	var ended store.Ended
	write := func() error {
		return r.held(one.Ctx, one, r.Pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := callWrite(ctx, tx, o.InTx); err != nil {
				return &writeError{err}
			}
			if err := one.Events.WriteIn(ctx, tx); err != nil {
				return err
			}
			var err error
			if ended, err = r.Store.FinishIn(ctx, tx, one.Lease.Pod, e); err != nil {
				return err
			}
			return failpoint.Hit(failpoint.InTxCommit)
		}, func(ctx context.Context) (bool, error) {
			// Nobody else ends this claim as succeeded; a cancelled one is as good, whoever wrote it.
			child := int64(0)
			if next != nil {
				child = next.ID
			}
			found, err := r.Store.ClaimOutcomes(ctx, one.Lease.Pod, []job.Lease{one.Lease}, []int64{child}, false)
			c := found[one.Lease.JobID]
			ended.ChildRunning = c.NextRunning
			return c.State != nil && *c.State == ended.State, err
		})
	}
	err := write()
	for try := 0; next != nil && r.Store.IDTaken(err) && try < idTries; try++ {
		if err = r.renumberNext(one, next); err == nil {
			err = write()
		}
	}
	if err == nil {
		return r.finished(one, next, e, ended, nil)
	}
	r.steppedBack(one, next)
	return r.concludeHeld(one, err)
}

// writeError is an error of the handler's own writes.
type writeError struct{ err error }

func (w *writeError) Error() string { return w.err.Error() }
func (w *writeError) Unwrap() error { return w.err }

// callWrite calls the handler's writes; a panic is their error. They have a goroutine of their own, because what ends
// theirs (runtime.Goexit, as of a test that fails) must not end ours, which owes the job its end.
func callWrite(ctx context.Context, tx pgx.Tx, write func(context.Context, pgx.Tx) error) error {
	err := guard.Call(func() error {
		err := write(ctx, tx)
		if err != nil {
			work.ReadError(err)
		}
		return err
	})
	if p, ok := err.(*guard.Panic); ok {
		return fmt.Errorf("in InTx: %w", p)
	}
	return err
}
