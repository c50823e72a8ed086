package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
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
			PodID: group[0].run.Lease.Pod, Ends: ends, LockWait: lockWait, Idle: g.Opts.LeaseFor,
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
