package store_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

func TestTooManyClientsReported(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t, "max_connections", "8", "superuser_reserved_connections", "0", "max_wal_senders", "0")
	pgtest.Migrate(t, server.URL())
	config, err := pgxpool.ParseConfig(server.URL())
	is.NoErr(err)
	config.MaxConns = 5
	host, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	defer host.Close()
	s, err := store.New(t.Context(), host, store.Options{PodConnections: 16})
	is.NoErr(err)
	defer s.Close()
	var taken []*pgx.Conn
	pgtest.Wait(t, "all connections are taken", func() bool { // a session of the migration may not have ended yet
		conn, err := pgx.Connect(t.Context(), server.URL())
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == store.TooMany {
			return len(taken) == 8
		}
		is.NoErr(err)
		taken = append(taken, conn)
		return false
	})
	_, err = view.Pods(t.Context(), s, true)
	is.True(store.Transient(err))
	is.True(strings.Contains(err.Error(), "no connection left: a pod opens up to 21, 16 of its own and 5 in the host's pool"))
	for _, conn := range taken {
		is.NoErr(conn.Close(t.Context()))
	}
	pgtest.Wait(t, "there are connections again", func() bool { _, err := view.Pods(t.Context(), s, true); return err == nil })
}

func TestHeartbeatConnectionReplacement(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	config, err := pgxpool.ParseConfig(proxy.URL())
	is.NoErr(err)
	config.MaxConnLifetime = 100 * time.Millisecond // set by the host, and shorter than the default
	host, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	defer host.Close()
	s, err := store.New(t.Context(), host, store.Options{})
	is.NoErr(err)
	defer s.Close()
	heart, err := s.Steady(t.Context(), 3)
	is.NoErr(err)
	defer heart.Close()
	backend := func() int {
		pids, err := store.Rows(t.Context(), heart, pgx.RowTo[int], `select pg_backend_pid()`)
		is.NoErr(err)
		return pids[0]
	}
	first := backend()
	pgtest.Wait(t, "it is replaced", func() bool { return backend() != first })

	kept := map[int]bool{backend(): true}
	proxy.Refuse() // new connections are now refused
	began := time.Now()
	pgtest.Wait(t, "it has lived for long", func() bool { kept[backend()] = true; return time.Since(began) > time.Second })
	is.True(len(kept) <= 2) // a new connection may have been opened just before Refuse
	proxy.Pass()
	pgtest.Wait(t, "it is replaced once another can be opened", func() bool { return !kept[backend()] })
}

func TestLateHeartbeatConnection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	host := pgtest.Pool(t)
	s, err := store.New(t.Context(), host, store.Options{})
	is.NoErr(err)
	defer s.Close()
	heart, err := s.Steady(t.Context(), 1)
	is.NoErr(err)
	backend := func() int {
		pids, err := store.Rows(t.Context(), heart, pgx.RowTo[int], `select pg_backend_pid()`)
		is.NoErr(err)
		return pids[0]
	}
	first := backend()
	holder, err := host.Acquire(t.Context())
	is.NoErr(err)
	defer holder.Release()
	_, err = holder.Exec(t.Context(), `select pg_advisory_lock(1)`)
	is.NoErr(err)
	late := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := store.Rows(ctx, heart, pgx.RowTo[string], `select 'late' from (select pg_advisory_xact_lock(1)) x`)
		return err
	}
	err = late()
	is.True(errors.Is(err, context.DeadlineExceeded))
	is.True(store.Unknown(err))
	_, err = holder.Exec(t.Context(), `select pg_advisory_unlock(1)`)
	is.NoErr(err)
	is.Equal(backend(), first)

	_, err = holder.Exec(t.Context(), `select pg_advisory_lock(1)`)
	is.NoErr(err)
	is.True(late() != nil)
	began := time.Now()
	heart.Close()
	is.True(time.Since(began) < 5*time.Second) // Close does not wait for the statement that is past its deadline
}

func TestStatementsOnFullServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t, "max_connections", "8", "superuser_reserved_connections", "0", "max_wal_senders", "0")
	config, err := pgxpool.ParseConfig(server.URL())
	is.NoErr(err)
	var dials atomic.Int64
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { dials.Add(1); return nil }
	host, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	defer host.Close()
	s, err := store.New(t.Context(), host, store.Options{Connections: 4})
	is.NoErr(err)
	defer s.Close()
	sleeps := func() error {
		_, err := store.Rows(t.Context(), s, pgx.RowTo[string], `select 'slept' from (select pg_sleep(0.1)) x`)
		return err
	}
	is.NoErr(sleeps()) // the pool now has a connection
	for conn := new(pgx.Conn); conn != nil; {
		if conn, err = pgx.Connect(t.Context(), server.URL()); err == nil {
			defer conn.Close(context.Background()) //nolint:errcheck // the server ends with the test
		}
	}
	var errs []<-chan error
	began := time.Now()
	for range 20 {
		done := make(chan error, 1)
		errs = append(errs, done)
		go func() { done <- sleeps() }()
	}
	for _, done := range errs {
		is.NoErr(<-done)
	}
	took := time.Since(began)
	t.Logf("20 statements took %s and dialed %d times", took, dials.Load())
	is.True(dials.Load() <= 4+3*int64(1+took/(100*time.Millisecond))) // every 100 ms, at most the three that the pool lacks
	err = s.Tx(t.Context(), func(pgx.Tx) error { return nil })
	is.NoErr(err)
}

// PgBouncer rejects session settings that it does not track, unless it is configured to ignore them.
func TestPoolerRejectsSessionSettings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			backend := pgproto3.NewBackend(conn, conn)
			if _, err := backend.ReceiveStartupMessage(); err == nil {
				backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: jit"})
				_ = backend.Flush()
			}
			_ = conn.Close()
		}
	}()
	host := pgtest.Connect(t, "postgres://nobody@"+listener.Addr().String()+"/none?sslmode=disable")
	s, err := store.New(t.Context(), host, store.Options{})
	is.NoErr(err)
	defer s.Close()
	_, err = view.Pods(t.Context(), s, true)
	is.True(err != nil && strings.Contains(err.Error(), "accepts no settings: set Options.BehindPooler or DirectURL"))
}
