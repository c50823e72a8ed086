package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEightRemoteWorkersShareJobsWithoutARollback(t *testing.T) { workersShareJobs(t, 8) }

// rollbacks counts the rolled back transactions of the database. Sessions report theirs up to a second late, so it waits until two
// readings, some seconds apart, are the same.
func rollbacks(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	read := func() (n int) {
		if err := pool.QueryRow(t.Context(), `select xact_rollback from pg_stat_database where datname = current_database()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	n, since := read(), time.Now()
	pgtest.WaitFor(t, time.Minute, "all sessions have reported", func() bool {
		if now := read(); now != n {
			n, since = now, time.Now()
		}
		return time.Since(since) > 3*time.Second
	})
	return n
}

// workersShareJobs has worker processes compete for jobs: each job runs once, on one worker, and no transaction is rolled back.
func workersShareJobs(t *testing.T, workers int) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := serve(t, db.url, []string{"TRAPEZE_KINDS=demo.noop"}) // with the usual lease
	pool := pgtest.Connect(t, db.url)
	for i := range workers {
		startFar(t, p.HTTP, fmt.Sprintf("TRAPEZE_POD=worker-%d", i))
	}
	count := func(sql string) (n int) {
		is.NoErr(pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	pgtest.WaitFor(t, time.Minute, "all workers are received", func() bool {
		return count(`select count(*) from trapeze.pods join trapeze.remote_workers using (boot) where closed_at is null`) == workers
	})
	submitter, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer submitter.Close()
	before := rollbacks(t, pool)
	list := make([]job.Args, 50*workers)
	for i := range list {
		list[i] = runner.Step(runner.Raw{Name: "demo.sleep", JSON: []byte(`{"ms":20}`)}, runner.Foreign())
	}
	_, err = submitter.EnqueueMany(t.Context(), list)
	is.NoErr(err)
	pgtest.WaitFor(t, 2*time.Minute, "all jobs have succeeded", func() bool {
		return count(`select count(*) from trapeze.done where state = 'succeeded'`) == len(list)
	})
	is.Equal(rollbacks(t, pool)-before, 0)
	_, err = pool.Exec(t.Context(), `select 1 / 0`)
	is.True(err != nil)
	is.Equal(rollbacks(t, pool)-before, 1)                                                                                     // one would have been counted
	is.Equal(count(`select count(*) from trapeze.done where fence <> 1 or attempt <> 1 or crashes <> 0`), 0)                   // none was on two workers
	is.Equal(count(`select count(distinct pod) from trapeze.done d join trapeze.remote_workers w on w.boot = d.pod`), workers) // all had some
	is.Equal(count(`select count(*) from trapeze.done d left join trapeze.remote_workers w on w.boot = d.pod where w.boot is null`), 0)
}
