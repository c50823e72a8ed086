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
	for name, outcome := range map[string]*runner.Outcome{
		"a next step":      runner.Then(of("next"), runner.Submitter("eve")),
		"a wrapped step":   runner.Then(runner.Step(of("next"), runner.Submitter("eve"))),
		"a child":          runner.FanOut(runner.Step(of("next"), runner.Submitter("eve"))),
		"a join":           runner.FanOut(of("next")).Join(runner.Step(of("next"), runner.Submitter("eve"))),
		"an unnamed child": runner.FanOut(of("next")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := start(t, pool, named("a"), map[string]does{
				"first": func(context.Context, *raw) (*runner.Outcome, error) { return outcome, nil },
				"next":  nothing,
			})
			j := ended(t, r, enqueue(t, r, of("first"), runner.Submitter("ana")))
			if strings.HasPrefix(name, "an unnamed") {
				is.Equal(j.State, job.Succeeded)
			} else {
				is.Equal(j.State, job.Failed)
			}
			is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs where submitter <> 'ana'`), 0)
		})
	}
}
