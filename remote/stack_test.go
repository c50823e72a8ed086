package remote_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// holding is a handler that waits, so that its stack can be read.
func holding(started chan<- int64, end <-chan struct{}) func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
	return func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		started <- j.ID()
		<-end
		return nil, nil
	}
}

func TestRemoteStackThroughOtherPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods  int
		every time.Duration
	}{
		"long before its next heartbeat":            {1, time.Minute},
		"with calls that go to other pods in turns": {3, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			var pods []pod
			for range c.pods {
				pods = append(pods, startPod(t, pool, runner.Options{HeartbeatInterval: c.every, LeaseDuration: 10 * time.Minute}, server.Options{}))
			}
			started, end := make(chan int64, 1), make(chan struct{})
			startWorker(t, worker.Options{Server: balance(t, pods...), Name: "gpu-1"}, func(r *runner.Runner) { runner.HandleRaw(r, "far", holding(started, end)) })
			submit(t, pods[0], raw("far", `{}`))
			id := <-started
			for _, p := range pods {
				stack, err := p.Admin("ops").Stack(t.Context(), id)
				is.NoErr(err)
				is.Equal(stack.Pod, "gpu-1")
				is.True(strings.Contains(stack.Stack, "holding"))
			}
			close(end)
			ends(t, pods[0], id, job.Succeeded)
		})
	}
}
