package remote_test

import (
	"context"
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// When a job is deleted while a remote worker runs it, the worker's writes and report are rejected with ErrGone.
func TestRemoteWorkersJobDeleted(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{}, server.Options{})
	begun, deleted := make(chan struct{}, 1), make(chan struct{})
	refused, cause := make(chan error, 1), make(chan error, 1)
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "long", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			begun <- struct{}{}
			<-deleted
			refused <- j.Checkpoint(ctx, 1)
			cause <- context.Cause(ctx)
			return nil, nil
		})
	})
	id := submit(t, p, raw("long", `{}`))
	<-begun
	_, err := pool.Exec(t.Context(), `with l as (delete from trapeze.live where id = $1) delete from trapeze.jobs where id = $1`, id)
	is.NoErr(err)
	close(deleted)
	err = <-refused
	is.True(errors.Is(err, job.ErrGone))
	is.True(errors.Is(<-cause, job.ErrGone))
	pgtest.Wait(t, "the pod has closed the claim", func() bool { return p.Running() == 0 })
	var n int
	is.NoErr(pool.QueryRow(t.Context(), `select (select count(*) from trapeze.done) + (select count(*) from trapeze.job_progress)`).Scan(&n))
	is.Equal(n, 0)
}
