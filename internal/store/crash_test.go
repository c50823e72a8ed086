package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// After a crash, PostgreSQL may reuse the id of a transaction whose WAL was lost. After a lost reply, the outcome must therefore be read
// from the row that the transaction locked, not from pg_xact_status.
func TestTransactionIDReusedAfterCrash(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	pool, err := pgxpool.New(t.Context(), server.URL())
	is.NoErr(err)
	defer pool.Close()
	s, err := store.New(t.Context(), pool, store.Options{})
	is.NoErr(err)
	defer s.Close()
	const podID = "00000000-0000-0000-0000-000000000001"
	is.NoErr(s.Register(t.Context(), store.PodInfo{PodID: podID, Name: "a", Kinds: []string{"k"}}, time.Minute))
	ids, err := s.NewIDs(t.Context(), 1)
	is.NoErr(err)
	_, err = s.Enqueue(t.Context(), podID, []store.NewJob{{ID: ids[0], Kind: "k", Lane: "default", Args: []byte("{}"), Starts: true}})
	is.NoErr(err)
	lease := job.Lease{JobID: ids[0], Fence: 1, Pod: podID}

	tx, err := store.Hold(t.Context(), s, pool, lease, time.Minute, false)
	is.NoErr(err)
	is.Equal(tx.Number(), 1)
	is.NoErr(server.Restart(t.Context(), "immediate"))
	tx.End(t.Context())
	pool.Reset()
	s.Pool().Reset()

	pgtest.Wait(t, "the server answers", func() bool { return pool.Ping(t.Context()) == nil })
	writes, held, err := store.Settled(t.Context(), s, lease)
	is.NoErr(err)
	is.True(held)
	is.Equal(writes, 0) // the transaction was not committed and can be repeated
}

func TestCommitInDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"))
	lease := leaseOf(podID, w.claimOne(podID))
	for _, commit := range []bool{false, true} {
		tx, err := store.Hold(w.ctx(), w.Store, w.pool, lease, time.Minute, false)
		w.is.NoErr(err)
		w.is.Equal(tx.Number(), 1) // the first transaction was rolled back
		type answer struct {
			writes int
			held   bool
			err    error
		}
		answered := make(chan answer, 1)
		go func() {
			var a answer
			a.writes, a.held, a.err = store.Settled(w.ctx(), w.Store, lease)
			answered <- a
		}()
		w.waiting(1) // Settled waits for the transaction with the unknown outcome
		want := 0
		if commit {
			want = 1
			w.is.NoErr(tx.Commit(w.ctx()))
		} else {
			w.is.NoErr(tx.Rollback(w.ctx()))
		}
		tx.End(w.ctx())
		got := <-answered
		w.is.NoErr(got.err)
		w.is.True(got.held)
		w.is.Equal(got.writes, want)
	}
}
