package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestPartialPipelineRetryCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	r, err := runner.New(pgtest.Connect(t, db.url), runner.Options{MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	t.Cleanup(r.Close)
	var healed atomic.Bool
	runner.HandleRaw(r, "fans", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.FanOut(runner.Raw{Name: "sick"}, runner.Raw{Name: "fine"}), nil
	})
	runner.HandleRaw(r, "sick", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		if healed.Load() {
			return nil, nil
		}
		return nil, errors.New("not yet")
	})
	runner.HandleRaw(r, "fine", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); <-done })
	go func() { done <- r.Run(ctx) }()
	made, err := r.Enqueue(t.Context(), runner.Raw{Name: "fans"})
	is.NoErr(err)
	id := fmt.Sprint(made.ID)
	db.inState(id, job.Succeeded)
	is.Equal(db.run("pipeline", "retry", id).code, 1) // a partial pipeline does not count as failed
	is.Equal(db.run("pipeline", "retry", id, "--children", "--args", "{}").code, 2)
	healed.Store(true)
	is.Equal(strings.TrimSpace(db.ok("pipeline", "retry", id, "--children")), "pipeline "+id+": 1 child retried, 0 skipped")
	pgtest.Wait(t, "the child has succeeded", func() bool {
		return strings.Count(db.ok("jobs", "--kind", "sick", "--state", "succeeded", "--json"), "\n") == 1
	})
	is.Equal(db.run("pipeline", "retry", id, "--children").code, 1) // no child is in the failed state
}
