package remote_test

import (
	"context"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// The next step of a remote worker's job makes its lane.
func TestWorkerStepMakesLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	_, err := p.Admin("ann").SetLane(t.Context(), "tenant/*", job.LaneChange{Slots: job.To(2)})
	is.NoErr(err)
	lanes := make(chan string, 2)
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-1"}, func(r *runner.Runner) {
		runner.HandleRaw(r, "first", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			lanes <- j.Lane()
			return runner.Then(raw("second", `1`), runner.Lane("tenant/2")), nil
		})
		runner.HandleRaw(r, "second", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			lanes <- j.Lane()
			return nil, nil
		})
	})
	ends(t, p, submit(t, p, raw("first", `0`), runner.Lane("tenant/1")), job.Succeeded)
	is.Equal(<-lanes, "tenant/1")
	is.Equal(<-lanes, "tenant/2")
}
