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

// seen holds what a handler can read about its job, apart from the arguments.
type seen struct {
	Kind      string
	Attempts  int
	By        string
	CreatedAt time.Time
}

func see(_ context.Context, j *raw) (*runner.Outcome, error) {
	it := seen{j.Kind(), j.MaxAttempts(), j.SubmittedBy(), j.CreatedAt()}
	if j.Kind() == "first" {
		return runner.Then(rawArgs("next")).Result(it), nil
	}
	return runner.Done(it), nil
}

func TestHandlerJobMetadata(t *testing.T) {
	t.Parallel()
	for path, wait := range map[string]time.Duration{"fast": 0, "poll": 20 * time.Millisecond} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := start(t, pool, runner.Options{MaxAttempts: 7}, map[string]handler{"first": see, "next": see})
			check := func(j job.JobRow, attempts int) {
				t.Helper()
				it, err := runner.Result[seen](t.Context(), r, j.ID)
				is.NoErr(err)
				is.Equal([]any{it.Attempts, it.By}, []any{attempts, "ann"})
				is.True(it.CreatedAt.Sub(j.CreatedAt).Abs() < time.Minute)
			}
			id := enqueue(t, r, rawArgs("first"), runner.Submitter("ann"), runner.MaxAttempts(3), runner.Delay(wait))
			check(waitEnded(t, r, id), 3)
			next := queryOne[int64](t, pool, `select id from trapeze.jobs where parent_id = $1`, id)
			check(waitEnded(t, r, next), 7) // a next step does not inherit the previous step's limit
		})
	}
}
