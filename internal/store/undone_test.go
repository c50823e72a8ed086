package store_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func TestCommandNeverStarted(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	s, err := store.New(t.Context(), pgtest.Connect(t, proxy.URL()), store.Options{Connections: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	modest := s.Modest(1)
	refused := func(t *testing.T, s *store.Store) {
		is := is.New(t)
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, _, err := admin.SetLane(soon, s, "a", job.LaneChange{}, "ada") // a transaction
		is.True(store.Transient(err) && !store.Unknown(err))
		_, err = s.HandBack(soon, "", []job.Lease{{JobID: 1}}, "") // a single statement
		is.True(store.Transient(err) && !store.Unknown(err))
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.HandBack(cancelled, "", []job.Lease{{JobID: 1}}, "")
		is.True(store.Transient(err) && !store.Unknown(err)) // the same call may succeed with another context
	}
	holding := func(s *store.Store, do func()) error {
		return s.Tx(t.Context(), func(pgx.Tx) error { do(); return nil })
	}
	t.Run("no free connection", func(t *testing.T) {
		is.New(t).NoErr(holding(s, func() { refused(t, s) }))
	})
	t.Run("no turn", func(t *testing.T) {
		is.New(t).NoErr(holding(modest, func() { refused(t, modest) }))
	})
	t.Run("no reply before the commit", func(t *testing.T) {
		is := is.New(t)
		is.NoErr(holding(s, func() {})) // a connection is open
		proxy.Blackhole()
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := s.Tx(soon, func(pgx.Tx) error { return nil })
		proxy.Pass()
		is.True(store.Transient(err) && !store.Unknown(err))
	})
	t.Run("a connection lost before the commit", func(t *testing.T) {
		is := is.New(t)
		times := 0
		is.NoErr(s.Tx(t.Context(), func(tx pgx.Tx) error {
			if times++; times == 1 {
				_, err := tx.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
				return err
			}
			return nil
		}))
		is.Equal(times, 2) // the transaction was rolled back, so it is repeated
	})
}

// A server that starts up refuses connections with 57P03. As nothing was sent, the outcome is known, and the caller's backoff decides when to
// connect again.
func TestConnectionRefusedDuringServerStart(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	t.Cleanup(func() { _ = listener.Close() })
	var attempts atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			attempts.Add(1)
			server := pgproto3.NewBackend(conn, conn)
			_, _ = server.ReceiveStartupMessage()
			server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03", Message: "the database system is starting up"})
			_ = server.Flush()
			_ = conn.Close()
		}
	}()
	s, err := store.New(t.Context(), pgtest.Connect(t, "postgres://x@"+listener.Addr().String()+"/x?sslmode=disable"), store.Options{})
	is.NoErr(err)
	t.Cleanup(s.Close)
	err = s.Tx(t.Context(), func(pgx.Tx) error { return nil })
	is.True(store.Transient(err) && !store.Unknown(err))
	is.Equal(attempts.Load(), int64(1))
}
