//go:build long

package runner_test

import (
	"context"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A submission detects connections that broke while they were idle, and uses another connection.
func TestSubmissionAfterIdleConnectionBreaks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	r := start(t, pool, named("a"), map[string]handler{"kind-a": func(context.Context, *raw) (*runner.Outcome, error) { return nil, nil }})
	const many = 250
	list := make([]job.Args, many)
	for i := range list {
		list[i] = rawArgs("kind-a", "1")
	}
	for range cutRounds {
		proxy.Reset()
		_, err := r.Enqueue(t.Context(), rawArgs("kind-a", "1"))
		is.NoErr(err)
		proxy.Reset()
		_, err = r.EnqueueMany(t.Context(), list)
		is.NoErr(err)
	}
	quiet(t, direct)
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.done where state = 'succeeded'`), cutRounds*(many+1))
	checkHistory(t, direct, r)
}
