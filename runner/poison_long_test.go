//go:build long

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// If a batch contains an invalid job, none of that batch's jobs are written. The call returns the reason and the job ids of the preceding
// batches. The caller can then submit the rest without the invalid job, so that no job is lost or duplicated.
func TestInvalidJobInSubmissionBatch(t *testing.T) {
	t.Parallel()
	for name, poison := range someOf(map[string]struct {
		args job.Args
		want error // nil if the database returns the error
	}{
		"oversized":                         {rawArgs("k", `"`, strings.Repeat("x", job.MaxArgsBytes), `"`), job.ErrTooLarge},
		"a NUL character":                   {rawArgs("k", `{"text":"a\u0000b"}`), job.ErrInvalidArgs},
		"invalid UTF-8":                     {rawArgs("k", "{\"text\":\"a\xffb\"}"), job.ErrInvalidArgs},
		"no JSON":                           {rawArgs("k", `{"text":`), job.ErrInvalidArgs},
		"nested too deep":                   {tooDeep, nil},
		"a step of a chain nested too deep": {runner.Chain(rawArgs("k"), tooDeep), nil},
		"a key":                             {runner.With(rawArgs("k"), runner.Unique("one", runner.WhileActive)), job.ErrInvalid},
		"a long subject":                    {runner.With(rawArgs("k"), runner.Subject(strings.Repeat("s", 501))), job.ErrInvalid},
		"unknown kind":                      {rawArgs("nobody_has_it"), job.ErrUnknownKind},
	}, "a NUL character", "a step of a chain nested too deep") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			var ran runsOf
			r := start(t, pool, runner.Options{Slots: 50}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
				ran.add(j.ID())
				return nil, nil
			}, "deep": succeed})
			const first = 2000 // the jobs of the first statement, without the invalid job
			list := make([]job.Args, first+batchOf)
			for i := range list {
				list[i] = rawArgs("k", fmt.Sprint(i))
			}
			at := first + rand.IntN(batchOf)
			list[at] = poison.args

			ids, err := r.EnqueueMany(t.Context(), list)
			is.True(err != nil)                                        // the call fails
			is.True(poison.want == nil || errors.Is(err, poison.want)) // the error has the expected reason
			is.Equal(len(ids), first)                                  // the previous batch was committed, and its ids are returned
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), first)

			rest, err := r.EnqueueMany(t.Context(), append(list[first:at:at], list[at+1:]...))
			is.NoErr(err) // the other jobs can be submitted again
			is.Equal(len(rest), batchOf-1)
			quiet(t, pool)
			is.True(ran.onceEach(len(list) - 1)) // every job except the invalid one ran once
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), len(list)-1)
			is.Equal(queryOne[int](t, pool, `select count(distinct args::text) from trapeze.jobs`), len(list)-1) // no job is duplicated
		})
	}
}
