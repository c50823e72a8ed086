package remote_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestStrayRemoteHandlerSlots(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{}, server.Options{})
	end := make(chan struct{}, 10)
	var now, most atomic.Int64
	startWorker(t, worker.Options{Server: p.url, Slots: 2, Name: "deaf"}, func(r *runner.Runner) {
		runner.HandleRaw(r, "deaf", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for old := most.Load(); old < n && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			<-end
			return nil, nil
		})
	})
	t.Cleanup(func() { close(end) })
	slots := func() (n int) {
		_ = pool.QueryRow(t.Context(), `select coalesce(sum(slots), 0) from trapeze.pods where name = 'deaf' and closed_at is null`).Scan(&n)
		return n
	}
	submit(t, p, raw("deaf", `{}`))
	pgtest.Wait(t, "the job is running", func() bool { return now.Load() == 1 && slots() == 2 })
	_, err := pool.Exec(t.Context(), `update trapeze.pods set closed_at = now() where name = 'deaf'`)
	is.NoErr(err)
	var list []int64
	for range 4 {
		list = append(list, submit(t, p, raw("deaf", `{}`)))
	}
	pgtest.Wait(t, "the worker restarts with the remaining slot", func() bool { return slots() == 1 && now.Load() == 2 })
	end <- struct{}{}
	pgtest.Wait(t, "the freed slot is offered", func() bool { return slots() == 2 && now.Load() == 2 })
	for range 7 {
		end <- struct{}{}
	}
	for _, id := range list {
		ends(t, p, id, job.Succeeded)
	}
	is.Equal(most.Load(), int64(2)) // the number of concurrent handlers never exceeded the worker's slots
}
