package runner_test

import (
	"context"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Access to a pipeline's lists and streams depends on the submitter, so all of a pipeline's steps must share one submitter.
func TestAPipelineHasOneSubmitter(t *testing.T) {
	t.Parallel()
	outcomes := map[string]*runner.Outcome{
		"a next step":      runner.Then(rawArgs("next"), runner.Submitter("eve")),
		"a wrapped step":   runner.Then(runner.With(rawArgs("next"), runner.Submitter("eve"))),
		"a child":          runner.FanOut(runner.With(rawArgs("next"), runner.Submitter("eve"))),
		"a join":           runner.FanOut(rawArgs("next")).Join(runner.With(rawArgs("next"), runner.Submitter("eve"))),
		"an unnamed child": runner.FanOut(rawArgs("next")),
	}
	handlers := map[string]handler{"next": succeed}
	for name, outcome := range outcomes {
		handlers[kindOf(name)] = func(context.Context, *raw) (*runner.Outcome, error) { return outcome, nil }
	}
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), handlers)
	for name := range outcomes {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs(kindOf(name)), runner.Submitter("ana")))
			if strings.HasPrefix(name, "an unnamed") {
				is.Equal(j.State, job.Succeeded)
			} else {
				is.Equal(j.State, job.Failed)
			}
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where submitter <> 'ana'`), 0)
		})
	}
}
