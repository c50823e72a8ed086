package remote_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// Every call has a deadline. Otherwise, a call to a pod that never replies would keep the worker from trying another pod.
func TestHeartbeatAndReportDeadlines(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var mu sync.Mutex
	without, calls := map[string]int{}, map[string]int{}
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: func(r *http.Request) (server.Caller, error) {
		mu.Lock()
		defer mu.Unlock()
		calls[r.URL.Path]++
		if r.Header.Get("Connect-Timeout-Ms") == "" && r.Header.Get("Grpc-Timeout") == "" {
			without[r.URL.Path]++
		}
		return byToken(r)
	}})
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "far", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	})
	ends(t, p, submit(t, p, raw("far", `{}`)), job.Succeeded)
	pgtest.Wait(t, "heartbeats and a report have arrived", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return calls[remotepb.WorkersHeartbeatProcedure] >= 2 && calls[remotepb.WorkersReportResultProcedure] >= 1
	})
	mu.Lock()
	defer mu.Unlock()
	delete(without, remotepb.WorkersStreamJobsProcedure) // streams stay open, so they have no deadline
	is.Equal(without, map[string]int{})
}
