package runner_test

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Commands still get a connection while statements from the feed and from remote workers hang, and also while list queries hang.
func TestCommandsDuringHangingReads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
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
			return queryOne[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`)
		}
		pgtest.Wait(t, name+" hang", func() bool { return hangs() > 0 })
		began := time.Now()
		for range 20 {
			is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
		}
		is.Equal(hangs(), 1)
		is.True(time.Since(began) < 8*time.Second) // before the hanging statements time out
		_, err = holder.Exec(t.Context(), `select pg_advisory_unlock(7)`)
		is.NoErr(err)
		hanging.Wait()
	}
}
