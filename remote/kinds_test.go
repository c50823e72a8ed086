package remote_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteKindLimits(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{MaxAttempts: 3}, server.Options{})
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-1"}, func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[load]) (*runner.Outcome, error) { return nil, nil }, runner.Timeout(time.Minute))
	})
	var handlers []job.KindHandler
	pgtest.Wait(t, "the worker's kind is listed", func() bool {
		kinds, _, err := view.Kinds(t.Context(), inside.Of(p.Runner).Store, time.Hour)
		is.NoErr(err)
		for _, one := range kinds {
			if one.Kind == "load" {
				handlers = one.Handlers
			}
		}
		return len(handlers) > 0
	})
	is.Equal(handlers[0].Pods, []string{"gpu-1"})
	is.True(handlers[0].Remote)
	is.Equal([]any{handlers[0].Limits.Timeout.Duration(), handlers[0].Limits.MaxAttempts}, []any{time.Minute, 3}) // the pod's limit on attempts applies
}
