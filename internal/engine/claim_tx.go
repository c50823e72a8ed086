package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// claimTx runs transactions that lock a claim's lease: the handlers' transactions, and those that finish a run together with its handler's
// writes.
type claimTx struct {
	*shared
	alive context.Context // ends when the engine gives up writing
}

// end describes a transaction's last write. Its committed field is set only if the transaction also finishes the run.
type end struct {
	before    func(context.Context, pgx.Tx) error         // makes the engine's own writes after the handler's; nil if there are none
	finish    func(context.Context, *store.Holding) error // makes the last write and commits; nil if there is none
	committed func(context.Context) (bool, error)         // reports whether a claim that is no longer held was finished by this transaction
}

// maxReruns limits the repetitions of a transaction that was lost while the handler's function was running.
const maxReruns = 8

// run calls do, the handler's writes, in a transaction that locks a claim's lease, and commits the transaction together with the run's
// events. The pool is the host's if the handler writes in the transaction. If do may not have caused the loss of the transaction (see
// [store.Holding.Broken]), do runs again in a new one, at most maxReruns times. All other errors of do are returned unchanged. If the
// connection breaks during the commit, the outcome is read back from the claim's row or, if the claim is no longer held, through
// end.committed.
//
// A claim's transactions run one at a time, so that each has a known number. They end with the handler's context, so that a cancel or stop
// command need not wait for a hanging write.
//
// If the transaction finishes the run, run retries the read-back until the commit's outcome is known, even after the context has ended.
// After a commit, the next step may belong to this pod, and then no other pod would start it.
func (l *claimTx) run(ctx context.Context, run *Run, pool *pgxpool.Pool, do func(context.Context, pgx.Tx) error, end end) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(l.alive, cancel)
	defer stop()
	select {
	case run.turn <- struct{}{}:
		defer func() { <-run.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	over := false
	defer func() { run.Events.End(over) }()
	closed, reruns := 0, 0
	var last error
	for backoff := routine.NewBackoff(); ; {
		if err := run.Events.Begin(ctx); err != nil {
			return after(last, err)
		}
		committed, err := l.try(ctx, run, pool, do, end)
		over = committed
		if own, ok := err.(*ownError); ok {
			return own.err
		}
		if committed || err != nil && !store.Transient(err) {
			return after(last, run.orGone(err))
		}
		last = err
		_ = l.DBError(err)
		if lost, ok := err.(*lostError); ok {
			if reruns++; reruns > maxReruns {
				return lost.err
			}
			l.Log.WarnContext(ctx, "lost the transaction of a job while its handler was writing, repeating its writes", append(run.attrs(), telemetry.Err, err)...)
		}
		if run.IsLost() {
			return run.Loss()
		}
		if store.ReadOnlyServer(err) && closed <= int(pool.Stat().MaxConns()) {
			closed++ // each attempt closes one of the pool's connections to the former primary
			continue
		}
		if backoff.Tries > 50 && (end.committed == nil || !isOutage(err)) || !backoff.Wait(ctx) { // finishing a run survives any outage
			return err
		}
	}
}

// isOutage reports whether err means that the primary is unreachable or the server is not a primary yet.
func isOutage(err error) bool {
	switch store.Class(err) {
	case "conn", "08", "25", "57":
		return true
	}
	return false
}

// after adds to the error that ended a series of attempts, such as a timeout, the error of the attempt before it.
func after(last, err error) error {
	if last == nil || err == nil {
		return err
	}
	return fmt.Errorf("%w (the attempt before failed: %v)", err, last)
}

// lostError marks an error from do after which do may be rerun.
type lostError struct{ err error }

func (l *lostError) Error() string { return l.err.Error() }

func (l *lostError) Unwrap() error { return l.err }

// ownError marks an error that resembles a connection error but must not cause do to be rerun.
type ownError struct{ err error }

func (o *ownError) Error() string { return o.err.Error() }

// writeError wraps an error that the handler's writes returned.
type writeError struct{ err error }

func (w *writeError) Error() string { return w.err.Error() }

func (w *writeError) Unwrap() error { return w.err }

// try makes a single attempt to run and commit the transaction. The committed result is true only if the commit is known to have succeeded.
func (l *claimTx) try(ctx context.Context, run *Run, pool *pgxpool.Pool, do func(context.Context, pgx.Tx) error, end end) (committed bool, err error) {
	release := func() {}
	if pool == l.Store.Pool() {
		if release, err = l.Store.Turn(ctx); err != nil {
			return false, context.Cause(ctx)
		}
	}
	tx, err := store.Hold(ctx, l.Store, pool, run.Lease, l.Opts.LeaseDuration, end.committed != nil)
	if err != nil {
		release()
		return false, err
	}
	giveBack := sync.OnceFunc(func() { tx.End(ctx); release() })
	defer giveBack()
	err = do(ctx, tx)
	switch check := tx.Check(); {
	case err == nil:
		err = check
	case check != nil && tx.Conn().PgConn().IsBusy():
		if w, ok := err.(*writeError); ok { // the open rows may be its cause, or the consequence of a panic
			err = &writeError{fmt.Errorf("%w: %w", check, w.err)}
		} else {
			err = fmt.Errorf("%w: %w", check, err)
		}
	}
	switch {
	case tx.Broken(err):
		return false, &lostError{err}
	case err != nil:
		return false, &ownError{err}
	}
	if err := l.before(ctx, run, tx, end); err != nil {
		if pg, ofServer := errors.AsType[*pgconn.PgError](err); (!ofServer || pg.Code == "57014" || pg.Code == "25006") && !tx.Conn().IsClosed() {
			err = &ownError{err}
		}
		return false, err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if end.finish != nil {
		err = end.finish(ending, tx)
		// If the write is rejected as read-only (25006), the handler has made the transaction read-only. The server itself accepts writes,
		// or else Hold could not have locked the row.
		if pg, ofServer := errors.AsType[*pgconn.PgError](err); ofServer && pg.Code == "25006" && !tx.Conn().IsClosed() {
			return false, &ownError{err}
		}
	} else {
		err = tx.Commit(ending)
	}
	if !store.Unknown(err) {
		return err == nil, err
	}
	giveBack() // the read-back needs a connection, possibly from the same pool
	return l.readBack(ctx, run, tx.Number(), err, end.committed)
}

// before makes the engine's own writes after the handler's.
func (l *claimTx) before(ctx context.Context, run *Run, tx pgx.Tx, end end) error {
	if err := run.Events.WriteIn(ctx, tx); err != nil || end.before == nil {
		return err
	}
	return end.before(ctx, tx)
}

// readBack reads back the outcome of a commit whose reply was lost. For a commit that finishes the run, it retries until the outcome is
// known (see run).
func (l *claimTx) readBack(ctx context.Context, run *Run, number int, lost error, ended func(context.Context) (bool, error)) (committed bool, err error) {
	if ended != nil {
		ctx = l.alive
	}
	held, gone := false, false
	err = l.untilKnown(ctx, lost, func(ctx context.Context) (is bool, err error) {
		var writes int
		writes, held, err = store.Settled(ctx, l.Store, run.Lease)
		if is = held && writes >= number; err == nil && !held && ended != nil {
			is, err = ended(ctx)
		}
		if gone = err == nil && !held || ended != nil && run.IsLost(); gone || err == nil {
			return is, nil
		}
		l.Damped.Warn(ctx, commitNotKnown, telemetry.JobID, run.Lease.JobID, telemetry.Err, l.DBError(err))
		return false, err
	}, nil, nil)
	switch {
	case err == nil:
		l.Damped.Over(ctx, commitNotKnown)
		return true, nil
	case ended != nil:
		l.Unknown.Raise() // in case it was committed after all, a later search finds the next step in the table
	}
	switch {
	case gone:
		return false, fmt.Errorf("commit under the lease of job %d: %w", run.Lease.JobID, job.ErrLeaseLost)
	case held:
		return false, lost
	}
	return false, fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, lost)
}
