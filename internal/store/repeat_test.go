package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestAStatementThatIsSentAgainAfterABrokenConnectionOnlyReads(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	reads := 0
	for name, sql := range statements {
		if !readsOnly(sql) {
			continue
		}
		reads++
		err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			described, err := tx.Prepare(t.Context(), "", sql)
			if err != nil {
				return err
			}
			_, err = tx.Conn().PgConn().ExecParams(t.Context(), sql, make([][]byte, len(described.ParamOIDs)), nil, nil, nil).Close()
			return err
		})
		// Other errors are those of a statement whose every parameter is null.
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == readOnly {
			t.Errorf("%s writes: %v", name, err)
		}
	}
	is.True(reads > 50)
	is.True(readsOnly(jobSQL))
	is.True(readsOnly(feedPageSQL))
	is.True(!readsOnly(claimSQL.text))
	is.True(!readsOnly(idBlocksSQL.text))
}

func TestTheFirstReadAndHeartbeatAfterConnectionsBrokeAreSentAgain(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	s, err := New(t.Context(), pool, Options{})
	is.NoErr(err)
	defer s.Close()
	boot := uuid.NewString()
	is.NoErr(s.Register(t.Context(), PodInfo{Boot: boot, Name: "a", Kinds: []string{"k"}}, time.Minute))
	// Each connection is ended by the server while it rests in the pool.
	breakAll := func() {
		t.Helper()
		is.NoErr(s.Warm(t.Context(), 4))
		_, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'trapeze' and datname = current_database()`)
		is.NoErr(err)
	}
	for range 3 {
		breakAll()
		_, err := s.Pods(t.Context(), true)
		is.NoErr(err)
		breakAll()
		b, err := s.Heartbeat(t.Context(), boot, time.Minute, false)
		is.NoErr(err)
		is.True(b.Open)
	}
}
