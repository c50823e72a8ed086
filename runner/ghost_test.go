package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// A submission with both kinds of keys returns the job that holds the unique key. Repeating the submission must return the same job.
func TestIdempotencyKeyWithUniqueKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": succeed})
	holder := enqueue(t, r, rawArgs("k"), runner.Unique("u", runner.WhilePending))
	first := enqueue(t, r, rawArgs("k"), runner.Unique("u", runner.WhilePending), runner.IdempotencyKey("i"))
	is.Equal(first, holder)
	again := enqueue(t, r, rawArgs("k"), runner.Unique("u", runner.WhilePending), runner.IdempotencyKey("i"))
	is.Equal(again, first)
	_, err := r.GetJob(t.Context(), again)
	is.NoErr(err)
}
