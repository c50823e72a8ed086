//go:build long

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/admin"
)

func TestCancelRacingFinish(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"a": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Then(rawArgs("b")), nil
	}, "b": succeed})
	for i := range cancelRounds {
		end := []func(context.Context, int64, ...admin.Condition) (admin.CancelResult, error){r.Admin("ann").Cancel, r.Admin("ann").ForceCancel}[i%2]
		id := enqueue(t, r, rawArgs("a"), runner.Subject(fmt.Sprint(i%4)))
		c, err := end(t.Context(), id)
		j := waitEnded(t, r, id)
		switch {
		case errors.Is(err, job.ErrAlreadyTerminal):
			is.Equal(j.State, job.Succeeded)
			is.Equal(c.State, job.Succeeded)
		default:
			is.NoErr(err)
			is.Equal(j.State, job.Cancelled) // an accepted cancellation takes effect
		}
		children := queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id = $1`, id)
		is.Equal(children == 1, j.State == job.Succeeded) // there is a child only if the job succeeded
	}
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.subjects where state = 'held'`), 0) // no subject is still in use
	checkHistory(t, pool, r)
}
