package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/mutant"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// ending prepares the end of a claim and its hand-off to the next step.
func (r *Runner) ending(one *run, e store.Ending, next *store.NewJob) *flush {
	e.ID, e.Fence, e.Next = one.lease.JobID, one.lease.Fence, next
	if next != nil {
		next.Starts = r.mayStart(one, next)
		r.flights.add(next.ID)
		if mutant.Is(mutant.LaunchBeforeCommit) && r.launchEarly(one, *next) {
			r.flights.remove(next.ID)
			r.steppedBack(one, next)
			next = nil
		}
		if mutant.Is(mutant.LostChild) {
			e.Next = nil
		}
	}
	return &flush{one: one, ending: e, next: next}
}

// finish writes the end of a claim and hands over to the next step, by group commit. It returns the next step when that
// is ours already.
func (r *Runner) finish(one *run, e store.Ending, next *store.NewJob) *run {
	w := r.ending(one, e, next)
	w.ended, w.err = r.flusher.submit(one, w.ending)
	return r.pursue(w)
}

// landed goes on after ends that nobody waited for, on the flusher's goroutine: what may take time has one of its own. The
// slots that come free are free together, so that one claim fills them all.
func (r *Runner) landed(ends []*flush) {
	var lanes []string
	for _, w := range ends {
		quick := w.err == nil && w.ended.State == job.Succeeded && (w.next == nil || w.ended.ChildRunning) &&
			!r.log.Enabled(w.one.ctx, slog.LevelDebug)
		if !quick {
			go func() {
				if r.goOn(w) {
					r.slotFree(w.one.claimed.Lane)
				}
			}()
		} else if lane := w.one.claimed.Lane; r.goOn(w) && !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	for _, lane := range lanes {
		r.slotFree(lane)
	}
}

// goOn closes the claim of an end that was written, or not, and has the next step performed. It reports whether the slot of
// its lane is free.
func (r *Runner) goOn(w *flush) bool {
	next := r.pursue(w)
	free := r.close(w.one, next)
	if next != nil {
		r.hands.give(next)
	}
	return free
}

// pursue sees to it that a claim ends when its end could not be written at first. It returns the next step when that is ours
// already.
func (r *Runner) pursue(w *flush) *run {
	one, e, next, ended, err := w.one, w.ending, w.next, w.ended, w.err
	if next != nil {
		defer r.flights.remove(next.ID)
	}
	if err != nil && store.Refused(err) {
		// What the handler returned cannot be stored: its failure can.
		r.steppedBack(one, next)
		r.log.ErrorContext(one.ctx, "result could not be stored", append(one.attrs(), telemetry.Err, err)...)
		e = store.Ending{ID: e.ID, Fence: e.Fence, State: job.Failed, Outcome: job.Error, Reason: job.ReasonUnstorable,
			Error: clean("what the handler returned could not be stored: "+err.Error(), 1000)}
		next = nil
		ended, err = r.flusher.submit(one, e)
	}
	// Neither is the database away nor the payload at fault: a partition is missing, a right was taken. A person must see to
	// it; until then the job has not ended, and keeps its slot.
	for wait := newPause(); err != nil && !errors.Is(err, job.ErrLeaseLost) && !one.isLost(); {
		r.log.ErrorContext(one.ctx, "end of job could not be written", append(one.attrs(), telemetry.Err, err)...)
		if !wait.sleep(r.flusher.life()) {
			break
		}
		ended, err = r.flusher.submit(one, e)
	}
	return r.finished(one, next, ended, e.Error, err)
}

// finished takes note of an end that was written, or refused (failure is what it would have said), and makes the claim of the next step.
func (r *Runner) finished(one *run, next *store.NewJob, ended store.Ended, failure string, err error) *run {
	if err != nil {
		r.steppedBack(one, next)
		if errors.Is(err, job.ErrLeaseLost) {
			r.stale(one, failure)
		} else {
			// The pod is stopping and the database does not answer: the lease runs out, and the net has it.
			r.log.ErrorContext(one.ctx, "end of job was not written", append(one.attrs(), telemetry.Err, err)...)
		}
		return nil
	}
	_ = failpoint.Hit(failpoint.FinishCommitted)
	committed := time.Now()
	r.count.finished(ended.State).Inc()
	r.logEnd(one, ended)
	if one.claimed.Subject != "" {
		r.freed.add(store.Key{Kind: one.claimed.Kind, Subject: one.claimed.Subject})
		r.poller.Wake()
	}
	if next == nil {
		return nil
	}
	if mutant.Is(mutant.LostChild) && ended.State == job.Succeeded {
		r.chainLate(one, *next)
	}
	var child *run
	if ended.ChildRunning {
		if child = r.newRun(born(*next, committed), one.lease.Pod); child == nil {
			r.doubt.raise() // stopping: the row is ours in the table and unknown here
		}
	}
	if next.Starts {
		r.lanes.stepped(one.claimed.Lane, next.Lane, child != nil)
		if child != nil && next.Lane != one.claimed.Lane {
			r.slotFree(one.claimed.Lane)
		}
	}
	if !ended.ChildRunning {
		if ended.State == job.Succeeded {
			if next.DelayMillis > 0 {
				r.due.parked(time.Duration(next.DelayMillis) * time.Millisecond)
				r.poller.Nudge()
			} else {
				r.wake()
				r.wakePeers()
			}
		}
		return nil
	}
	if child != nil {
		child.handed = committed
	}
	return child
}

// steppedBack undoes what mayStart prepared.
func (r *Runner) steppedBack(one *run, next *store.NewJob) {
	if next != nil && next.Starts {
		r.lanes.stepped(one.claimed.Lane, next.Lane, false)
	}
}

func (r *Runner) logEnd(one *run, ended store.Ended) {
	if ended.State == job.Succeeded {
		if r.log.Enabled(one.ctx, slog.LevelDebug) {
			r.log.DebugContext(one.ctx, "job succeeded", one.attrs()...)
		}
		return
	}
	r.log.WarnContext(one.ctx, "job "+string(ended.State), one.attrs()...)
}

// finishInTx ends a claim in a transaction of the host's pool, with the handler's own writes in it: fence, writes, end
// and next step are one commit. The writes run again when the connection broke before the commit; only one commit counts.
func (r *Runner) finishInTx(one *run, o *Outcome, e store.Ending, next *store.NewJob) *run {
	e.ID, e.Fence, e.Next = one.lease.JobID, one.lease.Fence, next
	if next != nil {
		next.Starts = r.mayStart(one, next)
		r.flights.add(next.ID)
		defer r.flights.remove(next.ID)
		if mutant.Is(mutant.LostChild) {
			e.Next = nil
		}
	}
	var ended store.Ended
	err := r.held(one.ctx, one.core, func(ctx context.Context, tx pgx.Tx) error {
		if err := callWrite(ctx, tx, o.inTx); err != nil {
			return &writeError{err}
		}
		if err := one.emitIn(ctx, tx); err != nil {
			return err
		}
		var err error
		if ended, err = r.store.FinishIn(ctx, tx, one.lease.Pod, e); err != nil {
			return err
		}
		return failpoint.Hit(failpoint.InTxCommit)
	}, func(ctx context.Context) (bool, error) {
		// Nobody else ends this claim as succeeded; a cancelled one is as good, whoever wrote it.
		found, err := r.whereabouts(ctx, one)
		return found.Ended != nil && *found.Ended == string(ended.State), err
	})
	if err == nil {
		return r.finished(one, next, ended, "", nil)
	}
	if errors.Is(err, job.ErrLeaseLost) && one.isLost() {
		return r.finished(one, next, ended, "", job.ErrLeaseLost)
	}
	r.steppedBack(one, next)
	if w, ok := errors.AsType[*writeError](err); ok {
		return r.concludeError(one, w.err, context.Cause(one.ctx))
	}
	if errors.Is(err, job.ErrCancelled) {
		// A cancel was committed before: the end says so, without the writes and without a next step.
		return r.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
	}
	cause := context.Cause(one.ctx)
	if errors.Is(err, job.ErrLeaseLost) && !errors.Is(cause, job.ErrLeaseLost) {
		return r.finished(one, nil, ended, "", err) // the fence refused it
	}
	// When it is the context that says so, the pod has lost its trust, and the claim may well be ours still: it is given
	// back, which the fence refuses when it is not.
	return r.concludeError(one, fmt.Errorf("finish with the handler's writes: %w", err), cause)
}

// writeError is an error of the handler's own writes.
type writeError struct{ err error }

func (w *writeError) Error() string { return w.err.Error() }
func (w *writeError) Unwrap() error { return w.err }

// callWrite calls the handler's writes; a panic is their error. They have a goroutine of their own, because what ends
// theirs (runtime.Goexit, as of a test that fails) must not end ours, which owes the job its end.
func callWrite(ctx context.Context, tx pgx.Tx, write func(context.Context, pgx.Tx) error) error {
	err := errGoexit
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic in InTx: %v\n%s", p, debug.Stack())
			}
		}()
		err = write(ctx, tx)
	}()
	<-done
	return err
}

// park ends a claim with a wait and reports whether it did: not when the lease is lost or a cancel was committed.
func (r *Runner) park(one *run, why string, wait time.Duration, message string) bool {
	err := r.persist(one, func(ctx context.Context) error {
		_, err := r.store.Park(ctx, one.lease, why, wait, message)
		if store.Unknown(err) {
			if w, err := r.whereabouts(ctx, one); err == nil && w.Parked {
				return nil
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, job.ErrLeaseLost) && !store.Refused(err) {
		// The pod is stopping, and the database does not answer: the lease runs out, and the net has it.
		r.log.ErrorContext(one.ctx, "wait of job was not written", append(one.attrs(), telemetry.Err, err)...)
		return true
	}
	if err == nil {
		r.due.parked(wait)
		r.poller.Nudge()
		if one.claimed.Subject != "" {
			r.freed.add(store.Key{Kind: one.claimed.Kind, Subject: one.claimed.Subject})
			r.poller.Wake()
		}
		return true
	}
	if why == "retry_later" {
		// A cancel was committed: end the job. Or the lease is lost, and this matches nothing.
		r.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
	}
	return false
}

// handBack gives a claim back to its lane, unspent.
func (r *Runner) handBack(one *run, why string) {
	back := false
	err := r.persist(one, func(ctx context.Context) error {
		did, err := r.store.HandBack(ctx, one.lease.Pod, []job.Lease{one.lease}, why)
		if store.Unknown(err) {
			if w, err := r.whereabouts(ctx, one); err == nil && w.Pending {
				back = true
				return nil
			}
		}
		back = did[one.lease.JobID]
		return err
	})
	switch {
	case err == nil && back:
		r.log.InfoContext(one.ctx, "job handed back", append(one.attrs(), "why", why)...)
		r.wake()
		r.wakePeers()
	case err == nil:
		// To be cancelled, or lost: the fence decides which.
		r.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
	}
}

func (r *Runner) whereabouts(ctx context.Context, one *run) (store.Whereabouts, error) {
	found, err := r.store.Whereabouts(ctx, one.lease.Pod, []job.Lease{one.lease}, []int64{0})
	return found[one.lease.JobID], err
}

// persist does a write that a claim owes, again and again while the database does not answer, until the lease is known to
// be lost or the runner gives up stopping. do must be safe to repeat.
func (r *Runner) persist(one *run, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(one.ctx))
	defer cancel()
	stop := context.AfterFunc(r.flusher.life(), cancel)
	defer stop()
	for wait := newPause(); ; {
		err := do(ctx)
		// Also what is neither of the connection nor of the values, such as a right that was taken, is tried again: nobody
		// else looks for the jobs of a living pod.
		if class := store.Class(err); err == nil || class == "" || store.Refused(err) {
			return r.dbError(err)
		}
		_ = r.dbError(err)
		if one.isLost() {
			return job.ErrLeaseLost
		}
		if !wait.sleep(ctx) {
			return err
		}
	}
}

// held runs do in a transaction of the host's pool that holds a claim's lease, and commits it. When the connection breaks
// before the commit, do runs again in a new transaction; when it breaks during the commit, the row that was held answers,
// and when that is gone, ended says whether it was this transaction that ended it. do's own errors come back as they are.
// The transactions of one claim take turns, so that each knows its number. They end with the handler's context: whoever
// cancels or stops the job does not wait for a write that hangs.
func (r *Runner) held(ctx context.Context, c *core, do func(context.Context, pgx.Tx) error, ended func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(r.flusher.life(), cancel)
	defer stop()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	over := false
	defer func() { c.emitRest(over) }()
	for wait := newPause(); ; {
		c.emissions.begin()
		committed, err := r.heldOnce(ctx, c.lease, do, ended)
		over = committed
		if own, ok := err.(*ownError); ok {
			return own.err
		}
		if committed || err != nil && !store.Transient(err) {
			return err
		}
		_ = r.dbError(err)
		if c.isLost() {
			return job.ErrLeaseLost
		}
		if wait.n > 50 || !wait.sleep(ctx) {
			return err
		}
	}
}

// ownError is an error of what held runs, not of the connection, however much it may look like one: no reason to run it
// again.
type ownError struct{ err error }

func (o *ownError) Error() string { return o.err.Error() }

// heldOnce is one try of held. committed says that the commit is known to have happened.
func (r *Runner) heldOnce(ctx context.Context, lease job.Lease, do func(context.Context, pgx.Tx) error, ended func(context.Context) (bool, error)) (committed bool, err error) {
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ending) // after a commit it does nothing; a broken connection has rolled back already
	}()
	number, err := r.store.Hold(ctx, tx, lease, r.opts.LeaseFor)
	if err != nil {
		return false, err
	}
	if err := do(ctx, tx); err != nil {
		// A statement of the handler's that took too long (57014) would take as long again.
		if pg, ofServer := errors.AsType[*pgconn.PgError](err); (!ofServer || pg.Code == "57014") && !tx.Conn().IsClosed() {
			err = &ownError{err}
		}
		return false, err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = tx.Commit(ending)
	if !store.Unknown(err) || mutant.Is(mutant.BlindCommitRetry) {
		return err == nil, err
	}
	for wait := newPause(); ; {
		writes, held, unread := r.store.Settled(ctx, lease)
		switch {
		case unread == nil && held && writes >= number:
			return true, nil
		case unread == nil && held:
			return false, err
		case unread == nil:
			if is, unread := ended(ctx); unread == nil && is {
				return true, nil
			} else if unread == nil {
				return false, fmt.Errorf("commit with job %d held: %w", lease.JobID, job.ErrLeaseLost)
			}
		}
		if !wait.sleep(ctx) {
			return false, fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
		}
	}
}
