//go:build long

package remote_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteWorkerBehindCallBalancer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{HeartbeatInterval: time.Second, LeaseDuration: 30 * time.Second} // generous enough for a slow machine
	first, second, third := startPod(t, pool, o, server.Options{}), startPod(t, pool, o, server.Options{}), startPod(t, pool, o, server.Options{})
	var runs, lasts atomic.Int64
	startWorker(t, worker.Options{Server: balance(t, first, second, third), Slots: 8}, func(r *runner.Runner) {
		runner.HandleRaw(r, "far", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			runs.Add(1)
			return runner.Then(raw("last", `{}`)), nil
		})
		runner.HandleRaw(r, "last", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			runs.Add(1)
			if lasts.Add(1)%8 == 0 { // some jobs run longer than an assignment may go unlisted
				select {
				case <-ctx.Done():
				case <-time.After(2*o.HeartbeatInterval + time.Second):
				}
			}
			return nil, ctx.Err()
		})
	})
	const n = 16
	for range n {
		submit(t, first, raw("far", `{}`))
	}
	done := func() (n int) {
		is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.done where state = 'succeeded'`).Scan(&n))
		return n
	}
	pgtest.Wait(t, "all have succeeded", func() bool { return done() == 2*n })
	is.Equal(runs.Load(), int64(2*n))
	var wrong int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.job_event where event in ('job.handed_back', 'job.recovered')`).Scan(&wrong))
	is.Equal(wrong, 0) // no job was considered lost, and no stream was closed for that reason
	var streams int
	is.NoErr(pool.QueryRow(t.Context(), `select max(stream) from trapeze.remote_workers`).Scan(&streams))
	is.Equal(streams, 1)
}
