package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A handler records progress and returns when its timeout expires. Meanwhile, the progress update is still waiting for a lock.
func TestReturnedHandlerWithWaitingProgress(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var log podtest.Log
	returned := make(chan struct{})
	r := start(t, pool, runner.Options{StuckAfter: 100 * time.Millisecond, Logger: log.Logger()}, map[string]handler{
		"notes": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			j.Progress(1, 2)
			<-ctx.Done()
			close(returned)
			return runner.Done("fine"), nil
		},
	}, runner.Timeout(2*time.Second))
	id := enqueueStarted(t, r, rawArgs("notes"))
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `select from trapeze.live where id = $1 for update`, id)
	is.NoErr(err)
	open()
	<-returned
	time.Sleep(500 * time.Millisecond) // there is no event to wait for when nothing happens
	is.NoErr(tx.Rollback(t.Context()))
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), `"fine"`)
	is.Equal(log.Count("handler ignores its cancelled context"), 0)
}

// Some handlers return during a database outage while the pod still trusts its lease. Their outcomes are kept and written once the database
// is back, because no other pod has taken over the jobs. Handlers that are still running when the pod stops trusting its lease are
// cancelled.
func TestResultsReturnedDuringOutage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `create table rows (job bigint)`)
	proxy, cut := cable(t, url)
	wait, open := latch(t)
	causes := make(chan error, 1)
	returned := make(chan string, 10)
	var log podtest.Log
	o := named("a")
	o.LeaseDuration, o.StuckAfter, o.Logger = 4*time.Second, 200*time.Millisecond, log.Logger()
	r := start(t, cut, o, map[string]handler{
		"returns": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			j.Progress(2, 2)
			returned <- "returns"
			return runner.Then(rawArgs("next")).Result("kept"), nil
		},
		"writes": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			returned <- "writes"
			return runner.Done("kept").InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
				return err
			}), nil
		},
		"runs-on": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Fence() > 1 {
				return nil, nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		},
		"next": succeed,
	})
	returns, writes, runsOn := enqueueStarted(t, r, rawArgs("returns")), enqueueStarted(t, r, rawArgs("writes")), enqueueStarted(t, r, rawArgs("runs-on"))
	pgtest.Wait(t, "all three jobs are running", func() bool { return r.Running() == 3 })
	proxy.Refuse()
	proxy.Reset()
	open()
	<-returned
	<-returned
	is.True(errors.Is(<-causes, job.ErrLeaseLost)) // cancelled because the pod stopped trusting its lease
	pgtest.Wait(t, "the lease has expired", func() bool {
		return queryOne[bool](t, direct, `select lease_until < now() - interval '500 milliseconds' from trapeze.pods`)
	})
	proxy.Pass()
	pgtest.Wait(t, "reads succeed", func() bool { _, err := r.GetJob(t.Context(), returns); return err == nil })
	for _, id := range []int64{returns, writes} {
		j := waitEnded(t, r, id)
		is.Equal(j.State, job.Succeeded)
		is.Equal(string(j.Result), `"kept"`)
		is.Equal(j.Fence, int64(1)) // the job did not run again
	}
	is.Equal(waitEnded(t, r, runsOn).Fence, int64(2))
	quiet(t, direct)
	is.Equal(queryOne[int](t, direct, `select count(*) from rows`), 1)
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'next'`), 1)
	is.Equal(log.Count("handler ignores its cancelled context"), 0)
	checkHistory(t, direct, r)
}
