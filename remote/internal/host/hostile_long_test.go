//go:build long

package host_test

import (
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

// Calls from workers never use up the connections that the pod's heartbeats need.
func TestLeaseDuringWorkerCallFlood(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	serves, called := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, serves, 1, "far")
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	_, err = tx.Exec(t.Context(), `select from trapeze.pods where id = $1 for update`, w.id)
	is.NoErr(err)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() { _, _ = hostOf(called).Heartbeat(t.Context(), w.id, owner, host.Beat{}) }) // each call waits for the locked row
	}
	waiting := func() (n int) {
		is.NoErr(pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%pods%'`).Scan(&n))
		return n
	}
	pgtest.Wait(t, "the maximum number of calls wait", func() bool { return waiting() >= 2 })
	began := time.Now()
	var before, after string
	lease := func(to *string) {
		is.NoErr(pool.QueryRow(t.Context(), `select lease_until::text from trapeze.pods where id = $1`, called.PodID()).Scan(to))
	}
	for range 3 {
		lease(&before)
		pgtest.Wait(t, "the pod sends a heartbeat", func() bool { lease(&after); return after != before })
	}
	is.True(time.Since(began) < 8*time.Second) // before the timeout of the waiting statements
	is.NoErr(tx.Rollback(t.Context()))
	calls.Wait()
}
