//go:build long

package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEightRemoteWorkersShareJobs(t *testing.T)    { workersShareJobs(t, 8) }
func TestTwentyRemoteWorkersSharingJobs(t *testing.T) { workersShareJobs(t, 20) }

// rollbacks returns the number of transactions rolled back since the database was created. It first waits until all other sessions have
// ended, because a live session may delay its statistics by up to ten seconds or until its next statement.
func rollbacks(t *testing.T, url string) (n int) {
	t.Helper()
	is := is.New(t)
	observer, err := pgx.Connect(t.Context(), url)
	is.NoErr(err)
	defer func() { _ = observer.Close(t.Context()) }()
	pgtest.WaitFor(t, time.Minute, "all other sessions have ended", func() bool {
		return pgtest.QueryOne[int](t, observer, `select count(*) from pg_stat_activity
			where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`) == 0
	})
	const counted = `select xact_rollback from pg_stat_database where datname = current_database()`
	before := pgtest.QueryOne[int](t, observer, counted)
	failing, err := pgx.Connect(t.Context(), url)
	is.NoErr(err)
	_, err = failing.Exec(t.Context(), `select 1 / 0`)
	is.True(err != nil)
	is.NoErr(failing.Close(t.Context()))
	pgtest.WaitFor(t, time.Minute, "a failing statement is counted", func() bool { return pgtest.QueryOne[int](t, observer, counted) > before })
	return pgtest.QueryOne[int](t, observer, counted) - 1 // subtract the failing statement above, which is counted after all others
}

// workersShareJobs has worker processes compete for jobs. Each job must run once, on a single worker, and no transaction may be rolled back
// while the pod and the workers are running.
func workersShareJobs(t *testing.T, workers int) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := serve(t, db.url, []string{"TRAPEZE_KINDS=demo.noop"}) // with the default lease
	pool := pgtest.Connect(t, db.url)
	list := make([]*far, workers)
	for i := range list {
		list[i] = startFar(t, p.HTTP, fmt.Sprintf("TRAPEZE_POD_NAME=worker-%d", i))
	}
	pgtest.WaitFor(t, time.Minute, "all workers are accepted", func() bool {
		return pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.pods p join trapeze.remote_workers w on w.pod = p.id where closed_at is null`) == workers
	})
	submitter, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer submitter.Close()
	jobs := make([]job.Args, 50*workers)
	for i := range jobs {
		jobs[i] = runner.With(runner.Raw{Name: "demo.sleep", JSON: []byte(`{"ms":60}`)}, runner.AllowUnregistered())
	}
	_, err = submitter.EnqueueMany(t.Context(), jobs)
	is.NoErr(err)
	pgtest.WaitFor(t, 2*time.Minute, "all jobs have succeeded", func() bool {
		return pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`) == len(jobs)
	})
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.done where fence <> 1 or attempt <> 1 or crashes <> 0`), 0)                    // no job ran on two workers
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(distinct d.pod) from trapeze.done d join trapeze.remote_workers w on w.pod = d.pod`), workers) // every worker ran jobs
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.done d left join trapeze.remote_workers w on w.pod = d.pod where w.pod is null`), 0)

	for _, w := range list {
		w.signal(syscall.SIGTERM)
	}
	for _, w := range list {
		w.end()
	}
	p.signal(syscall.SIGTERM)
	p.end()
	submitter.Close()
	pool.Close()
	// A process may stop just after it has begun a transaction, for example to prepare a statement. That transaction is rolled back.
	is.True(rollbacks(t, db.url) <= 1)
}
