package runner_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEnqueueMiddlewareOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	type key struct{}
	errRefused := errors.New("not today")
	var mu sync.Mutex
	var seen [][]runner.Submission
	var made [][]runner.Submitted
	var failed []error
	outer := func(ctx context.Context, jobs []runner.Submission, next func(context.Context) ([]runner.Submitted, error)) ([]runner.Submitted, error) {
		if jobs[0].Kind == "refused" {
			return nil, errRefused
		}
		list, err := next(context.WithValue(ctx, key{}, "from outside"))
		mu.Lock()
		defer mu.Unlock()
		seen, made, failed = append(seen, jobs), append(made, list), append(failed, err)
		return list, err
	}
	inner := func(ctx context.Context, _ []runner.Submission, next func(context.Context) ([]runner.Submitted, error)) ([]runner.Submitted, error) {
		if ctx.Value(key{}) != "from outside" {
			return nil, errors.New("it has no value of the outer one")
		}
		return next(ctx)
	}
	pool := pgtest.Pool(t)
	var r *runner.Runner
	r = start(t, pool, runner.Options{EnqueueMiddleware: []runner.EnqueueMiddleware{outer, inner}}, map[string]handler{
		"k":       succeed,
		"refused": succeed,
		"submits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			_, err := r.Enqueue(ctx, rawArgs("k"), runner.Subject("from a handler"))
			return runner.Then(rawArgs("k")), err // a next step is not a submission
		},
	})

	first := enqueue(t, r, runner.Chain(rawArgs("k", `{"n":1}`), runner.With(rawArgs("k", `{"n":2}`), runner.Lane("default"))), runner.Subject("s"), runner.Priority(3),
		runner.Delay(time.Hour), runner.MaxAttempts(7), runner.Unique("u", runner.WhileActive), runner.IdempotencyKey("i"), runner.Submitter("ann"),
		runner.Pipeline("p"), runner.NeedsApproval(), runner.AllowUnregistered(), runner.Lane("default"))
	subject, priority := "s", 3
	is.Equal(seen[0], []runner.Submission{{Step: job.Step{Kind: "k", Args: []byte(`{"n":1}`), Lane: "default", Subject: &subject, Priority: &priority},
		Then: []job.Step{{Kind: "k", Args: []byte(`{"n":2}`), Lane: "default"}}, Delay: time.Hour, MaxAttempts: 7, UniqueKey: "u", UniqueWhile: runner.WhileActive, IdempotencyKey: "i", Submitter: "ann",
		Pipeline: "p", NeedsApproval: true, AllowUnregistered: true}})
	is.Equal(made[0], []runner.Submitted{{ID: first, PipelineID: first, State: job.AwaitingApproval}}) // the middleware also sees the submission's results
	two, err := r.Enqueue(t.Context(), rawArgs("k", `{"n":1}`), runner.Unique("u", runner.WhileActive))
	is.NoErr(err)
	is.True(two.Duplicate)
	is.Equal(seen[1], []runner.Submission{{Step: job.Step{Kind: "k", Args: []byte(`{"n":1}`)}, UniqueKey: "u", UniqueWhile: runner.WhileActive}})
	is.Equal(made[1], []runner.Submitted{two})

	var three runner.Submitted
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) (err error) {
		three, err = r.EnqueueTx(t.Context(), tx, rawArgs("k"))
		return err
	}))
	is.Equal(made[2], []runner.Submitted{three})
	ids, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("k"), rawArgs("k"), rawArgs("k")})
	is.NoErr(err)
	is.Equal(len(seen[3]), 3) // one call for all jobs that share a commit
	is.Equal([]int64{made[3][0].ID, made[3][1].ID, made[3][2].ID}, ids)
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("nowhere"))
	is.True(errors.Is(err, job.ErrUnknownLane))
	is.True(errors.Is(failed[4], job.ErrUnknownLane))

	_, err = r.Enqueue(t.Context(), rawArgs("refused"))
	is.True(errors.Is(err, errRefused))
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		_, err := r.EnqueueTx(t.Context(), tx, rawArgs("refused"))
		is.True(errors.Is(err, errRefused))
		return nil
	}))
	ids, err = r.EnqueueMany(t.Context(), []job.Args{rawArgs("refused"), rawArgs("k")})
	is.True(errors.Is(err, errRefused))
	is.Equal(len(ids), 0)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'refused'`), 0) // nothing was submitted

	inState(t, r, enqueue(t, r, rawArgs("submits")), job.Succeeded)
	mu.Lock()
	defer mu.Unlock()
	is.Equal(len(seen), 7) // "submits" and the job that its handler submits
	is.Equal(seen[5][0].Kind == "k" || seen[6][0].Kind == "k", true)
}

func TestEnqueueMiddlewareMissingResults(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{EnqueueMiddleware: []runner.EnqueueMiddleware{
		func(ctx context.Context, _ []runner.Submission, next func(context.Context) ([]runner.Submitted, error)) ([]runner.Submitted, error) {
			_, err := next(ctx)
			return nil, err
		},
	}}, map[string]handler{"k": succeed})
	_, err := r.Enqueue(t.Context(), rawArgs("k"))
	is.Equal(fmt.Sprint(err), "enqueue middleware returned 0 results for 1 jobs: return those of next")
	_, err = runner.New(pgtest.Pool(t), runner.Options{EnqueueMiddleware: []runner.EnqueueMiddleware{nil}})
	is.Equal(fmt.Sprint(err), "runner options: enqueue middleware 1 is nil")
}
