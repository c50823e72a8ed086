//go:build long

package remote_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// All goroutines that serve a worker end when the worker leaves, no matter how often workers come and go.
func TestDepartedWorkerGoroutines(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	round := func() {
		var stops []func() error
		for range 8 {
			stops = append(stops, startWorker(t, worker.Options{Server: p.url, Slots: 2}, func(r *runner.Runner) {
				runner.HandleRaw(r, "far", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
			}))
		}
		var ids []int64
		for range 32 {
			ids = append(ids, submit(t, p, raw("far", `{}`)))
		}
		for _, id := range ids {
			ends(t, p, id, job.Succeeded)
		}
		for _, stop := range stops {
			is.NoErr(stop())
		}
	}
	round()
	before := 0
	pgtest.Wait(t, "the first workers have gone", func() bool {
		now := runtime.NumGoroutine()
		still := now == before
		before = now
		return still
	})
	round()
	round()
	pgtest.Wait(t, "no goroutine of the later workers is left", func() bool { return runtime.NumGoroutine() <= before+8 }) // less than one per worker
}
