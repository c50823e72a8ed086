package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestAProgramThatOnlySubmitsWakesThePods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	pod, err := runner.New(pool, runner.Options{PollEvery: time.Hour})
	is.NoErr(err)
	runner.Handle(pod, func(context.Context, *runner.Job[first]) (*runner.Outcome, error) { return nil, nil })
	run(t, pod)
	submitter, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer submitter.Close()
	made, err := submitter.Enqueue(t.Context(), first{}, runner.Foreign())
	is.NoErr(err)
	is.Equal(ended(t, pod, made.ID).State, job.Succeeded) // long before the next poll
}
