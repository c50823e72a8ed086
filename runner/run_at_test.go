package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type dated struct{ Fail bool }

func (dated) Kind() string { return "dated" }

func TestTimesAndErrorOnlyHandlers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, nil)
	runner.HandleFunc(r, func(_ context.Context, j *runner.Job[dated]) error {
		if j.Args.Fail {
			return runner.Code("refused", errors.New("refused"))
		}
		return nil
	}, runner.NoRetry())
	run(t, r)
	for _, due := range []runner.EnqueueOption{runner.Delay(-time.Hour), runner.RunAt(time.Now().Add(-time.Hour)), runner.RunAt(time.Time{})} {
		is.Equal(waitEnded(t, r, enqueue(t, r, dated{}, due)).State, job.Succeeded) // the past means now
	}
	failed := waitEnded(t, r, enqueue(t, r, dated{Fail: true}))
	is.Equal([]any{failed.State, failed.Attempt, *failed.ErrorCode}, []any{job.Failed, 1, "refused"})
	page, err := r.Admin("ann").Jobs(t.Context(), job.Filter{Kind: "dated", States: []job.State{job.Succeeded}, Limit: 2})
	is.NoErr(err)
	is.Equal(len(page.Jobs), 2)
	page, err = r.Admin("ann").Jobs(t.Context(), job.Filter{Kind: "dated", States: []job.State{job.Succeeded}, Limit: 2, Cursor: page.Cursor})
	is.NoErr(err)
	is.Equal([]any{len(page.Jobs), page.Jobs[0].Attempt}, []any{1, 1})
	_, err = r.Admin("ann").Jobs(t.Context(), job.Filter{Reason: "tired"})
	is.True(errors.Is(err, job.ErrInvalid))

	at := time.Now().Add(time.Hour)
	ids, err := r.EnqueueMany(t.Context(), []job.Args{
		runner.With(dated{}, runner.RunAt(at), runner.Priority(3)), runner.With(dated{}, runner.Delay(2*time.Hour), runner.Subject("s")),
	}, runner.Priority(1))
	is.NoErr(err)
	first, second := get(t, r, ids[0]), get(t, r, ids[1])
	is.Equal([]any{first.State, second.State, second.Subject}, []any{job.Pending, job.Pending, "s"})
	is.True(first.RunAfter.Sub(at).Abs() < time.Minute)
	is.Equal([]int{first.Priority, second.Priority}, []int{3, 1}) // the job's own option takes precedence
}
