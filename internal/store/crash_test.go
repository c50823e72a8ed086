package store

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// What PostgreSQL says of a transaction whose log was lost is not to be relied on: first it does not know the id, then it
// gives it to another transaction. This is why what the transaction has written is looked for too.
func TestTheIdOfATransactionThatACrashTookIsGivenToAnother(t *testing.T) {
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	pool, err := pgxpool.New(t.Context(), server.URL())
	is.NoErr(err)
	defer pool.Close()
	s, err := New(t.Context(), pool, Options{})
	is.NoErr(err)
	defer s.Close()
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	var xid string
	is.NoErr(tx.QueryRow(t.Context(), "select pg_current_xact_id()::text").Scan(&xid))
	is.NoErr(s.Checkpoint(t.Context(), tx, 1, []byte(`"lost"`)))
	is.NoErr(server.Restart(t.Context(), "immediate"))
	_ = tx.Rollback(t.Context())
	pool.Reset()

	pgtest.Wait(t, "the server answers", func() bool { return pool.Ping(t.Context()) == nil })
	status, err := s.Committed(t.Context(), xid)
	is.NoErr(err)
	is.Equal(status, "aborted") // the id is in the future
	pgtest.Wait(t, "another transaction gets the id", func() bool {
		_, err := pool.Exec(t.Context(), "insert into trapeze.job_progress (id) values (2) on conflict (id) do update set done = 1")
		is.NoErr(err)
		status, err = s.Committed(t.Context(), xid)
		return err == nil && status == "committed"
	})
	there, err := s.CheckpointIs(t.Context(), 1, []byte(`"lost"`))
	is.NoErr(err)
	is.True(!there) // but ours was not committed
}
