//go:build long

package remote_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteResultsOverRateLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	const each, burst, jobs = 12, 5, 24 // low enough that even a slow machine exceeds the limit
	p := startPod(t, pgtest.Pool(t), runner.Options{HeartbeatInterval: 15 * time.Second, LeaseDuration: time.Minute}, server.Options{CallsPerSecond: each, CallsBurst: burst, Authenticate: func(*http.Request) (server.Caller, error) {
		calls.Add(1)
		return server.Caller{Name: "gpu"}, nil
	}})
	var ran atomic.Int64
	began := time.Now()
	startWorker(t, worker.Options{Server: p.url, Slots: 8}, func(r *runner.Runner) {
		runner.HandleRaw(r, "quick", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			ran.Add(1)
			if err := j.Checkpoint(ctx, 1); err != nil {
				return nil, err
			}
			return runner.Done("kept"), j.Emit(ctx, "it.ran", "", "", nil)
		})
	})
	var list []int64
	for range jobs {
		list = append(list, submit(t, p, raw("quick", `{}`)))
	}
	for _, id := range list {
		j := ends(t, p, id, job.Succeeded)
		is.Equal(string(j.Result), `"kept"`)
		is.Equal(j.Fence, int64(1)) // the job ran on the first worker that received it
	}
	is.Equal(ran.Load(), int64(len(list)))
	is.True(float64(calls.Load()) > burst+each*time.Since(began).Seconds()) // more calls were sent than the limit allows, so some were rejected
}
