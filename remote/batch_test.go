package remote_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// A remote worker handles jobs in batches. Each job has its own outcome.
func TestRemoteBatch(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{}, server.Options{})
	sizes := make(chan int, 10)
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-1", Slots: 4}, func(r *runner.Runner) {
		runner.HandleBatch(r, func(_ context.Context, jobs []*runner.Job[load]) []runner.BatchResult {
			sizes <- len(jobs)
			results := make([]runner.BatchResult, len(jobs))
			for i, j := range jobs {
				j.Progress(1, 2)
				if results[i].Outcome = runner.Then(raw("on_a_pod", `{}`), runner.AllowUnregistered()).Result(j.ID()); j.Key() == "bad" {
					results[i].Err = runner.Permanent(errors.New("no"))
				}
			}
			return results
		}, runner.BatchSize(2), runner.BatchWait(10*time.Minute))
	})
	for range 2 {
		good, bad := []int64{submit(t, p, load{}), submit(t, p, load{})}, []int64{submit(t, p, load{}, runner.Key("bad")), submit(t, p, load{}, runner.Key("bad"))}
		for i := range good {
			is.Equal(*ends(t, p, good[i], job.Succeeded).Progress.Done, int64(1))
			is.Equal(deref(ends(t, p, bad[i], job.Failed).Error), "no")
		}
	}
	for range 4 {
		is.Equal(<-sizes, 2)
	}
}
