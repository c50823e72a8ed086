package remote_test

import (
	"context"
	"errors"
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

func TestPodStatsOfRemoteJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{MaxAttempts: 1}, server.Options{})
	stopWorker := startWorker(t, worker.Options{Server: p.url, Name: "gpu-1"}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[load]) (*runner.Outcome, error) {
			if j.Args.N == 0 {
				return nil, errors.New("nothing to load")
			}
			return nil, nil
		})
	})
	ends(t, p, submit(t, p, load{1}), job.Succeeded)
	ends(t, p, submit(t, p, load{2}), job.Succeeded)
	ends(t, p, submit(t, p, load{0}), job.Failed)
	is.NoErr(stopWorker()) // while the pod still runs; otherwise the worker may send its last outcome again for 20 s
	p.stop()               // on shutdown, the pod writes the counts for the current minute
	r, err := runner.New(pool, runner.Options{Logger: quiet})
	is.NoErr(err)
	defer r.Close()
	rows, err := view.ReadStats(t.Context(), inside.Of(r).Store, view.StatsFilter{Window: time.Hour})
	is.NoErr(err)
	s := rows.By(view.ByKind).Of
	is.Equal(len(s), 1)
	is.Equal([]any{s[0].Name, s[0].Succeeded, s[0].Failed}, []any{"load", int64(2), int64(1)})
	is.True(s[0].RunP50 != nil && s[0].WaitP50 != nil)
}
