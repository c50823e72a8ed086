package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// groups finishes runs whose handlers queued statements. Runs that finish concurrently share a transaction on the host's pool. A group
// commits only if every statement succeeds. The runs of a group that the database has rejected, and runs that have lost their claim or have a
// cancel request, are left to [executor.finishAlone]. If other jobs of the kind whose statement was rejected are likely to fail too, jobs of that
// kind share no commit for a while.
type groups struct {
	*flusher
	off     bool // grouping is disabled: with the simple protocol, a single string may contain several statements
	leases  *claimTx
	reading sync.WaitGroup // waits for members whose commit has an unknown outcome

	muAlone sync.Mutex
	alone   map[string]time.Time // kinds whose writes were rejected, with the time until which their jobs are committed alone
}

const (
	groupAtMost  = 64
	groupBytes   = 4 << 20          // approximate maximum size of a group's statements
	lockWait     = time.Second      // lock timeout of a group; short, because a waiting statement delays all members
	groupWithin  = 10 * time.Second // timeout for all statements of a group
	refusedAlone = time.Minute
)

// errAlone means that nothing was written and the run must be finished in a separate transaction.
var errAlone = errors.New("must be committed alone")

func newGroups(f *flusher, leases *claimTx) *groups {
	g := &groups{flusher: f, leases: leases, alone: map[string]time.Time{}}
	g.write, g.atMost = g.writeGroups, groupAtMost
	g.off = g.Pool == nil || g.Pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
	return g
}

// run commits groups until ctx ends, and then answers the remaining completions with an error.
func (g *groups) run(ctx context.Context) {
	g.flusher.run(ctx)
	g.reading.Wait()
}

// takes reports whether a handler's writes can share a commit with other handlers' writes.
func (g *groups) takes(kind string, writes work.Writes) bool {
	if g.off || !writes.Queued() {
		return false
	}
	g.muAlone.Lock()
	defer g.muAlone.Unlock()
	until, refused := g.alone[kind]
	if refused && time.Now().After(until) {
		delete(g.alone, kind)
		return true
	}
	return !refused
}

// refused makes jobs of a kind commit separately for a while, because the database has rejected writes of one of them.
func (g *groups) refused(kind string) {
	g.muAlone.Lock()
	defer g.muAlone.Unlock()
	g.alone[kind] = time.Now().Add(refusedAlone)
}

// writeGroups splits a batch into groups whose members belong to the same pod, writes the groups, and answers every member.
func (g *groups) writeGroups(ctx context.Context, batch []*flush) {
	slices.SortFunc(batch, func(a, b *flush) int {
		return cmp.Or(cmp.Compare(a.run.Lease.Pod, b.run.Lease.Pod), cmp.Compare(a.ending.ID, b.ending.ID))
	})
	for len(batch) > 0 {
		n, bytes := 1, batch[0].weight()
		for n < len(batch) && batch[n].run.Lease.Pod == batch[0].run.Lease.Pod && bytes+batch[n].weight() <= groupBytes {
			bytes += batch[n].weight()
			n++
		}
		g.writeGroup(ctx, batch[:n])
		batch = batch[n:]
	}
}

// writeGroup writes a group, sorted by id.
func (g *groups) writeGroup(ctx context.Context, group []*flush) {
	ended, culprit, err := g.finish(ctx, group)
	_ = g.DBError(err)
	if culprit != nil && (delayed(err) || !store.Transient(err) && !store.Unknown(err)) {
		g.refused(culprit.run.Claimed.Kind) // other jobs of its kind may fail in the same way
	}
	if store.Unknown(err) {
		for _, w := range group {
			g.reading.Go(func() { g.readBack(w, err) }) // in the background, so that the next group need not wait
		}
		return
	}
	var written []*flush
	for _, w := range group {
		if end, ok := ended[w.ending.ID]; ok {
			w.ended = end
			written = append(written, w)
		} else {
			g.answer(w, store.Ended{}, errAlone)
		}
	}
	g.afterFlush(written)
}

// delayed reports whether the statement that failed with err has delayed the other members of its group.
func delayed(err error) bool {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	return errors.Is(err, context.DeadlineExceeded) || pg != nil && (pg.Code == "55P03" || pg.Code == "57014")
}

// finish commits a group. The culprit is the member whose statement failed, or nil if none did.
func (g *groups) finish(ctx context.Context, group []*flush) (ended map[int64]store.Ended, culprit *flush, err error) {
	ctx, cancel := context.WithTimeout(ctx, groupWithin)
	defer cancel()
	ends, members := make([]store.Ending, len(group)), make(map[int64]*flush, len(group))
	for i, w := range group {
		ends[i], members[w.ending.ID] = w.ending, w
	}
	err = routine.Call(func() (err error) { // an argument's type may panic while it is being encoded
		ended, err = store.FinishGroup(ctx, g.Store, g.Pool, store.Group{
			PodID: group[0].run.Lease.Pod, Ends: ends, LockWait: lockWait, Idle: g.Opts.LeaseDuration,
			Queue:   func(id int64, batch *pgx.Batch) { members[id].writes.Queue(batch, func(int) { culprit = members[id] }) },
			Sending: func() error { return failpoint.Hit(failpoint.InTxCommit) },
		})
		return err
	})
	for _, w := range group {
		if _, its := w.writes.Prepares(err); its && culprit == nil {
			culprit = w // another member with the same statement may be to blame, but it is usually of the same kind
		}
	}
	return ended, culprit, err
}

// readBack finds out whether a member was committed, after the reply to its group's commit was lost, and then answers the member.
func (g *groups) readBack(w *flush, lost error) {
	committed, err := g.leases.readBack(w.run.Ctx, w.run, store.Uncounted, lost, g.leases.endCommitted(w))
	switch {
	case committed:
		g.answer(w, w.ended, nil)
	case err == lost: // the claim is still held, and nothing was written
		g.answer(w, store.Ended{}, errAlone)
	default:
		g.answer(w, store.Ended{}, w.run.orGone(err))
	}
}

// finishAlone finishes a run in a separate transaction, which contains the fence check, the handler's writes, the outcome and the next
// step. If the connection breaks before the commit, the writes run again in a new transaction. If finishAlone returns an error, the run is
// not finished.
func (x *executor) finishAlone(w *flush) (*Run, error) {
	run, next := w.run, w.next
	if next != nil {
		defer func() { x.InFlight.Remove(next.ID) }()
	}
	write := func() error {
		return x.leases.run(run.Ctx, run, x.Pool, func(ctx context.Context, tx pgx.Tx) error {
			return x.callWrite(ctx, run, tx, w.writes)
		}, end{
			before: func(context.Context, pgx.Tx) error { return failpoint.Hit(failpoint.InTxCommit) },
			finish: func(ctx context.Context, tx *store.Holding) (err error) {
				w.ended, err = tx.Finish(ctx, x.Store, run.Lease.Pod, w.ending)
				return err
			},
			committed: x.leases.endCommitted(w),
		})
	}
	err := write()
	if next != nil {
		err = x.withFreeIDs(run, err, []*store.NewJob{next}, write)
	}
	if err == nil {
		return x.finished(run, next, w.ending, w.ended, nil), nil
	}
	x.undoStart(run, next)
	return x.concludeHeld(run, err)
}

// finishGrouped continues after the group commit of a completion with queued statements. It returns the run of the next step if that step
// has started in this process. If it returns an error, the run is not finished.
func (x *executor) finishGrouped(w *flush) (*Run, error) {
	if errors.Is(w.err, errAlone) {
		next, err := x.finishAlone(w)
		if _, refused := errors.AsType[*heldError](err); refused {
			x.groups.refused(w.run.Claimed.Kind)
		}
		return next, err
	}
	if w.next != nil {
		defer x.InFlight.Remove(w.next.ID)
	}
	if w.err == nil || errors.Is(w.err, errStopped) {
		return x.finished(w.run, w.next, w.ending, w.ended, w.err), nil
	}
	x.undoStart(w.run, w.next)
	return x.concludeHeld(w.run, w.err)
}

// callWrite runs the handler's writes and turns a panic into an error. Each error is a [writeError]. It uses a separate goroutine, because a
// runtime.Goexit in the handler's code, for example from a failing test, must not end the current one, which still has to finish the job.
func (x *executor) callWrite(ctx context.Context, run *Run, tx pgx.Tx, writes work.Writes) error {
	err := routine.Call(func() error {
		err := x.Holders.Inside(run, func() error { return writes.Run(ctx, tx) })
		if err != nil {
			err = work.ReadError(err)
		}
		return err
	})
	if p, ok := err.(*routine.Panic); ok {
		err = fmt.Errorf("in InTx or Write: %w", p)
	}
	if err != nil {
		err = &writeError{err}
	}
	return err
}

// concludeHeld finishes a run whose last transaction was not committed, or returns an error with which the caller must finish it.
func (x *executor) concludeHeld(run *Run, err error) (*Run, error) {
	if errors.Is(err, job.ErrLeaseLost) && run.IsLost() {
		return x.finished(run, nil, store.Ending{}, store.Ended{}, err), nil
	}
	if w, ok := errors.AsType[*writeError](err); ok {
		return nil, &heldError{w.err}
	}
	if errors.Is(err, job.ErrCancelled) {
		// Either a cancel was committed first or the handler was cancelled. Record the cancellation, without the handler's writes or a next
		// step.
		x.finish(run, store.Ending{State: job.Cancelled, Outcome: job.Error, Reason: job.ReasonCancelled})
		return nil, nil
	}
	if errors.Is(err, job.ErrLeaseLost) && !errors.Is(context.Cause(run.Ctx), job.ErrLeaseLost) {
		return x.finished(run, nil, store.Ending{}, store.Ended{}, err), nil // the fence rejected the write
	}
	// If the handler's context has ended, the pod may no longer trust its lease, although it may still own the claim. The caller therefore
	// hands the claim back. If another pod owns it by now, the fence rejects the hand-back.
	return nil, &heldError{fmt.Errorf("end with the handler's writes: %w", err)}
}

// heldError wraps the error from a transaction that locked the lease. The cause of the handler's context must be reread, because the
// context may have ended after the handler returned.
type heldError struct{ err error }

func (h *heldError) Error() string { return h.err.Error() }

func (h *heldError) Unwrap() error { return h.err }
