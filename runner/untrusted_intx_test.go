package runner_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// If a pod briefly loses the database and no other pod recovers its jobs, it still owns its claims. It must hand back the jobs that it does
// not finish, because no other pod will.
func TestWritesDuringUntrustedLease(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `create table rows (job bigint)`)
	proxy, cut := cable(t, url)
	const jobs = 8
	causes := make(chan error, 2*jobs)
	o := named("a")
	o.Slots = jobs
	r := start(t, cut, o, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if j.Fence() == 1 {
			<-ctx.Done()
			causes <- context.Cause(ctx)
		}
		return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
			return err
		}), nil
	}})
	var ids []int64
	for range jobs {
		ids = append(ids, enqueueStarted(t, r, rawArgs("a")))
	}
	pgtest.Wait(t, "all jobs are running", func() bool { return r.Running() == jobs })
	proxy.Blackhole()
	for range jobs {
		is.True(errors.Is(<-causes, job.ErrLeaseLost))
	}
	proxy.Pass()
	for _, id := range ids {
		j := waitEnded(t, r, id)
		is.Equal(j.State, job.Succeeded)
		is.Equal(j.Crashes, 0) // the job was handed back, which does not count as a crash
	}
	is.Equal(queryOne[int](t, direct, `select count(*) from rows`), jobs) // each job wrote one row
	checkHistory(t, direct, r)
}
