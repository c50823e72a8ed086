package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// submit inserts a job with a unique key in one transaction, as a submission does, and returns the key's holder.
func (w *world) submit(key, while string) (id, holder int64) {
	w.t.Helper()
	n := w.new(func(n *store.NewJob) { n.UniqueKey, n.UniqueWhile = &key, &while })[0]
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) (err error) {
		if holder, err = store.ReserveKey(w.ctx(), w.Store, tx, n.Kind, key, n.ID); err != nil || holder != n.ID {
			return err
		}
		return second(store.EnqueueIn(w.ctx(), w.Store, tx, []store.NewJob{n}, false))
	}))
	return n.ID, holder
}

func TestClaimDuringUncommittedNoOp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id, _ := w.submit("sync", "pending")
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	holder, err := store.ReserveKey(w.ctx(), w.Store, tx, "k", "sync", id+1)
	w.is.NoErr(err)
	w.is.Equal(holder, id) // the submission has no effect, because a job is already waiting
	plainID := w.put(plain)[0]
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 5}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{plainID}) // the first job must see the writes of the duplicate submission's transaction, but other jobs do not have to wait
	w.is.Equal(w.at(id).Attempt, 0)                 // no attempt was spent
	w.is.NoErr(tx.Commit(w.ctx()))
	w.is.Equal(w.claimOne(podID).ID, id)
}

func TestPendingUniqueKeyAfterClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id, holder := w.submit("sync", "pending")
	w.is.Equal(holder, id)
	_, holder = w.submit("sync", "pending")
	w.is.Equal(holder, id)
	c := w.claimOne(podID)
	next, holder := w.submit("sync", "pending")
	w.is.Equal(holder, next)
	_, err := w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, "why")
	w.is.NoErr(err)
	w.is.Equal(len(w.claims(podID, 5)), 2) // a job that was handed back no longer needs its key
}

func TestActiveUniqueKeyAfterEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, podID string, c *store.Claimed){
		"finished": func(w *world, podID string, c *store.Claimed) { w.end(podID, ending(c)) },
		"cancelled": func(w *world, _ string, c *store.Claimed) {
			_, err := admin.Cancel(w.ctx(), w.Store, c.ID, 0, true, "ann", ignoreLease)
			w.is.NoErr(err)
		},
		"crashed": func(w *world, podID string, c *store.Claimed) {
			w.exec(`update trapeze.live set crashes = 2`)
			w.dies(podID, w.pod("b"))
		},
		"cancelled while it waited for its retry": func(w *world, podID string, c *store.Claimed) {
			_, err := w.Park(w.ctx(), leaseOf(podID, c), lease, store.Retry{Message: "boom"})
			w.is.NoErr(err)
			_, holder := w.submit("sync", "active")
			w.is.Equal(holder, c.ID)
			_, err = admin.Cancel(w.ctx(), w.Store, c.ID, 0, false, "ann", ignoreLease)
			w.is.NoErr(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			id, _ := w.submit("sync", "active")
			c := w.claimOne(podID)
			_, holder := w.submit("sync", "active")
			w.is.Equal(holder, id) // the first job is running
			end(w, podID, c)
			next, holder := w.submit("sync", "active")
			w.is.Equal(holder, next)
		})
	}
}

func TestEndWithLockedUniqueKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id, _ := w.submit("sync", "active")
	c := w.claimOne(podID)
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	holder, err := store.ReserveKey(w.ctx(), w.Store, tx, "k", "sync", id+1)
	w.is.NoErr(err)
	w.is.Equal(holder, id)
	_, ok := w.end(podID, ending(c)) // the finish does not wait for the host's open transaction
	w.is.True(ok)
	w.is.NoErr(tx.Commit(w.ctx()))
	next, holder := w.submit("sync", "active")
	w.is.Equal(holder, next) // the key that was not freed does not suppress a new submission
	_, holder = w.submit("sync", "active")
	w.is.Equal(holder, next)
}

func TestSubmissionAwaitingFreedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.submit("sync", "pending")
	release := w.freeze(`select pg_advisory_xact_lock(7)`)
	sql := gated(store.ClaimSQL, store.LanesWanted, "lane, want, ahead, first, last")
	claim := async(func() (store.Claims, error) {
		return store.RunClaim(context.Background(), w.Store, sql, fiveOf(podID))
	})
	w.waiting(1)
	release(false)
	next, holder := w.submit("sync", "pending") // it makes no difference whether the submission comes before, during or after the claim
	found, err := claim()
	w.is.NoErr(err)
	if len(found.Jobs) == 1 {
		w.is.True(holder == next || holder == found.Jobs[0].ID)
	}
}

func TestSubmissionWithTakenUniqueKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reserve := func(id int64, content string) (holder int64, err error) {
		err = w.Tx(w.ctx(), func(tx pgx.Tx) error {
			holder, err = store.ReserveSubmission(w.ctx(), w.Store, tx, "key", id, store.Fingerprint(store.NewJob{Kind: "k", Subject: "s", Args: []byte(content)}))
			return err
		})
		return holder, err
	}
	holder, err := reserve(1, `{"n":1}`)
	w.is.NoErr(err)
	w.is.Equal(holder, int64(1))
	holder, err = reserve(2, `{"n":1}`)
	w.is.NoErr(err)
	w.is.Equal(holder, int64(1))
	_, err = reserve(3, `{"n":2}`)
	w.is.True(errors.Is(err, job.ErrKeyReused)) // the same key with different content is an error
	w.exec(`update trapeze.submissions set created_at = now() - interval '2 days'`)
	n, err := upkeep.PruneSubmissions(w.ctx(), w.Store, lease, 500)
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	holder, err = reserve(3, `{"n":2}`)
	w.is.NoErr(err)
	w.is.Equal(holder, int64(3))
}
