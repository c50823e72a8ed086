package runner_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// ofPods selects the sessions that pods opened in this database, excluding those of the host pools.
const ofPods = `from pg_stat_activity where datname = current_database() and application_name like 'trapeze%'`

func TestAnIdlePodKeepsTheSameThreeConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	admin := pgtest.Connect(t, url)
	host := pgtest.Connect(t, pgtest.WithParameter(url, "pool_max_conn_idle_time=100ms"))
	r := start(t, host, runner.Options{PollEvery: 300 * time.Millisecond}, map[string]does{"k": nothing})
	var busy sync.WaitGroup
	for range 20 {
		busy.Go(func() { _, _ = r.Enqueue(t.Context(), of("k")) })
	}
	busy.Wait()
	stream, err := inside.Of(r).Feed.All(t.Context(), "", feed.Now)
	is.NoErr(err)
	stream.Close()

	open := func() []int { return column[int](t, admin, `select pid `+ofPods+` order by pid`) }
	var kept []int
	since := time.Now()
	pgtest.Wait(t, "the pod has kept the same three connections for several heartbeats, polls and idle checks", func() bool {
		if now := open(); !slices.Equal(now, kept) || len(now) != 3 {
			kept, since = now, time.Now()
		}
		return time.Since(since) > 3*time.Second
	})
	is.Equal(one[int](t, admin, `select count(*) `+ofPods+` and application_name = 'trapeze-listen'`), 1)
	ended(t, r, enqueue(t, r, of("k")))
}

// Commands still get a connection while the statements of the feed and of remote workers hang, and also while the statements of lists hang.
func TestFeedsAndListsLeaveAConnectionToCommands(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]does{"k": nothing})
	holder, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	for name, s := range map[string]*store.Store{"feeds and remote workers": inside.Of(r).Pod.RemoteStore, "lists and maintenance": inside.Of(r).Slow} {
		is := is.New(t)
		_, err = holder.Exec(t.Context(), `select pg_advisory_lock(7)`)
		is.NoErr(err)
		var hanging sync.WaitGroup
		for range 10 {
			hanging.Go(func() {
				_, _ = store.Rows(t.Context(), s, pgx.RowTo[string], `select 'hangs' from (select pg_advisory_xact_lock(7)) x`)
			})
		}
		hangs := func() int {
			return one[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`)
		}
		pgtest.Wait(t, name+" hang", func() bool { return hangs() > 0 })
		began := time.Now()
		for range 20 {
			is.Equal(ended(t, r, enqueue(t, r, of("k"))).State, job.Succeeded)
		}
		is.Equal(hangs(), 1)
		is.True(time.Since(began) < 8*time.Second) // before the hanging statements time out
		_, err = holder.Exec(t.Context(), `select pg_advisory_unlock(7)`)
		is.NoErr(err)
		hanging.Wait()
	}
}
