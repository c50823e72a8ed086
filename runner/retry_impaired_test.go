package runner_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// One branch of a cancelled pipeline is retried alone, and one of that branch's children fails. When the whole pipeline is then retried, no
// branches are left to retry, but the pipeline must still end as partial.
func TestPartialPipelineAfterBranchRetry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var bad atomic.Bool
	r := start(t, pool, runner.Options{}, map[string]handler{
		"root": func(context.Context, *raw) (*runner.Outcome, error) { return runner.FanOut(rawArgs("sub")), nil },
		"sub":  func(context.Context, *raw) (*runner.Outcome, error) { return runner.FanOut(many("leaf", 2)...), nil },
		"leaf": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "1" {
				return nil, nil
			}
			if bad.Load() {
				return nil, runner.Permanent(errors.New("bad luck"))
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	id := enqueue(t, r, rawArgs("root"))
	pgtest.Wait(t, "one leaf has ended, and the other is running", func() bool {
		return queryOne[bool](t, pool, `select count(*) = 1 and (select count(*) from trapeze.done) = 1 from trapeze.live where kind = 'leaf' and state = 'running'`)
	})
	_, err := r.Admin("me").Cancel(t.Context(), id)
	is.NoErr(err)
	quiet(t, pool)
	bad.Store(true)
	sub := queryOne[int64](t, pool, `select id from trapeze.jobs where kind = 'sub'`)
	_, err = r.Admin("me").Retry(t.Context(), sub, nil)
	is.NoErr(err)
	is.Equal(*waitEnded(t, r, sub).Reason, job.ReasonChildrenFailed)
	_, err = r.Admin("me").Retry(t.Context(), id, nil)
	is.NoErr(err)
	waitEnded(t, r, id)
	is.Equal(waitPipeline(t, pool, id), "partial")
}
