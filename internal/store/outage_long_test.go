//go:build long

package store_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

func TestHostDialsDuringOutage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	s, err := store.New(t.Context(), pgtest.Connect(t, proxy.URL()), store.Options{Connections: 2})
	is.NoErr(err)
	defer s.Close()
	proxy.Refuse()
	for began := time.Now(); time.Since(began) <= store.OutageAfter+store.AttemptsApart; { // a single failure is not an outage
		_, err = view.Pods(t.Context(), s, true)
		is.True(store.Transient(err))
	}
	before := s.Pool().Stat().NewConnsCount()
	failed := 0
	for began := time.Now(); failed < 1000 && time.Since(began) < 10*time.Second; failed++ {
		_, err := view.Pods(t.Context(), s, true)
		is.True(store.Transient(err) && !store.Unknown(err)) // nothing was sent
	}
	dials := int(s.Pool().Stat().NewConnsCount() - before)
	t.Logf("%d requests dialed %d times", failed, dials)
	is.True(dials < failed/3)
	proxy.Pass()
	pgtest.Wait(t, "the database answers again", func() bool { _, err := view.Pods(t.Context(), s, true); return err == nil })
}

func TestPoolerSessionsToStandby(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := primary.AddStandby(t)
	var port atomic.Int64
	port.Store(int64(standby.Port()))
	proxy, err := faultnet.StartTo(func() (string, string) { return "tcp", fmt.Sprintf("127.0.0.1:%d", port.Load()) })
	is.NoErr(err)
	t.Cleanup(proxy.Close)
	config, err := pgxpool.ParseConfig(pgtest.Pooler(t, strings.Replace(primary.URL(), fmt.Sprint("127.0.0.1:", primary.Port()), proxy.Addr(), 1), 3))
	is.NoErr(err)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	host, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(host.Close)

	// The address temporarily points to the standby, and the pooler keeps the sessions that it opened there.
	var others sync.WaitGroup
	for range 3 {
		others.Go(func() { _, _ = host.Exec(t.Context(), `select pg_sleep(0.5)`) })
	}
	others.Wait()
	there := pgtest.Connect(t, standby.URL())
	stay := func() (n int) {
		is.NoErr(there.QueryRow(t.Context(), `select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()`).Scan(&n))
		return n
	}
	is.Equal(stay(), 3)
	port.Store(int64(primary.Port()))

	s, err := store.New(t.Context(), host, store.Options{BehindPooler: true})
	is.NoErr(err)
	t.Cleanup(s.Close)
	pgtest.Wait(t, "a write succeeds", func() bool {
		return s.Register(t.Context(), store.PodInfo{PodID: uuid.NewString(), Name: "a", Kinds: []string{"k"}}, time.Minute) == nil
	})
	is.True(stay() < 3)
}
