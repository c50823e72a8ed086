package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// returns creates a handler that always returns o().
func returns(o func() *runner.Outcome) handler {
	return func(context.Context, *raw) (*runner.Outcome, error) { return o(), nil }
}

// awaiting waits until n jobs of a kind await approval, and returns them.
func awaiting(t *testing.T, pool *pgxpool.Pool, kind string, n int) []int64 {
	t.Helper()
	const sql = ` from trapeze.job where kind = $1 and state = 'awaiting_approval'`
	pgtest.Wait(t, "jobs of kind "+kind+" await approval", func() bool { return queryOne[int](t, pool, `select count(*)`+sql, kind) == n })
	return queryOne[[]int64](t, pool, `select array_agg(id order by id)`+sql, kind)
}

// Steps in their approved predecessor's lane need no further approval, nor do steps that were planned when the pipeline was submitted.
func TestStepsOfApprovedPipeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds select k, 'careful' from unnest('{risky,emits,fans}'::text[]) k`)
	r := start(t, pool, runner.Options{}, map[string]handler{"safe": succeed, "risky": succeed,
		"emits": returns(func() *runner.Outcome { return runner.Then(rawArgs("risky")) }),
		"fans": returns(func() *runner.Outcome {
			return runner.FanOut(rawArgs("risky"), rawArgs("emits")).Join(rawArgs("risky"))
		}),
	})
	for _, args := range []job.Args{rawArgs("emits"), rawArgs("fans"), runner.Chain(rawArgs("risky"), rawArgs("safe"))} {
		id := enqueue(t, r, args)
		is.NoErr(r.Admin("bob").Approve(t.Context(), id))
		quiet(t, pool)
		is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.job where pipeline_id = $1 and state <> 'succeeded'`, id), 0)
	}
	// The new arguments have not been approved.
	last := queryOne[int64](t, pool, `select max(id) from trapeze.job where kind = 'risky' and parent_id is not null`)
	exec(t, pool, `update trapeze.done set state = 'failed' where id = $1`, last)
	_, err := r.Admin("ann").Retry(t.Context(), last, 1)
	is.NoErr(err)
	is.Equal(get(t, r, last).State, job.AwaitingApproval)
	is.NoErr(r.Admin("bob").Approve(t.Context(), last))
	planned := enqueue(t, r, runner.Chain(rawArgs("safe"), rawArgs("risky")))
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.job where pipeline_id = $1 and state = 'succeeded'`, planned), 2)
}

func TestFailureJobIntoApprovalLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('risky', 'careful')`)
	r := start(t, pool, runner.Options{}, map[string]handler{"safe": succeed, "risky": succeed,
		"fails": func(context.Context, *raw) (*runner.Outcome, error) { return nil, job.Permanent(errors.New("no")) },
		"pays":  returns(func() *runner.Outcome { return runner.Then(rawArgs("fails")).OnFailure(rawArgs("risky")) })})
	for _, submit := range []func(){
		func() { enqueue(t, r, rawArgs("fails"), runner.OnFailure(rawArgs("risky"))) },
		func() {
			enqueue(t, r, rawArgs("fails"), runner.OnFailure(runner.Chain(rawArgs("safe"), rawArgs("risky"))))
		}, // the second step of the on-failure chain
		func() { enqueue(t, r, rawArgs("pays")) }, // a compensation
	} {
		submit()
		step := awaiting(t, pool, "risky", 1)[0]
		is.NoErr(r.Admin("bob").Approve(t.Context(), step))
		is.Equal(waitEnded(t, r, step).State, job.Succeeded)
	}
	asks := enqueue(t, r, rawArgs("safe"), runner.Lane("careful"), runner.OnFailureOrCancel(rawArgs("risky")))
	_, err := r.Admin("ann").Cancel(t.Context(), asks) // cancelled before it is approved
	is.NoErr(err)
	awaiting(t, pool, "risky", 1)
	checkHistory(t, pool, r)
}

func TestUnapprovedChildAfterRetry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('risky', 'careful')`)
	r := newRunner(t, pool, runner.Options{ApprovalTTL: 50 * time.Millisecond}, map[string]handler{"risky": succeed,
		"fans": returns(func() *runner.Outcome { return runner.FanOut(rawArgs("risky")) })})
	run(t, r)
	id := enqueue(t, r, rawArgs("fans"))
	child := awaiting(t, pool, "risky", 1)[0]
	pgtest.Wait(t, "the approval expires", func() bool { return r.Maintain(t.Context()) == nil && get(t, r, child).State == job.Cancelled })
	is.Equal(waitEnded(t, r, id).State, job.Failed) // the job failed because its only child was cancelled
	_, err := r.Admin("ann").RetryPipeline(t.Context(), id, nil)
	is.NoErr(err)
	is.Equal(get(t, r, child).State, job.AwaitingApproval)
	is.Equal(get(t, r, id).State, job.Waiting)
	checkHistory(t, pool, r)
}

func TestFanOutRetryWithApprovals(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('risky', 'careful')`)
	r := start(t, pool, runner.Options{}, map[string]handler{"risky": succeed, "last": succeed,
		"fan": returns(func() *runner.Outcome { return runner.FanOut(rawArgs("risky"), rawArgs("risky")).Join(rawArgs("last")) }),
	})
	id := enqueue(t, r, rawArgs("fan"))
	awaiting(t, pool, "risky", 2)
	_, err := r.Admin("ann").CancelPipeline(t.Context(), id)
	is.NoErr(err)
	quiet(t, pool)
	all := true
	m, err := r.Admin("ann").RetryMany(t.Context(), runner.Filter{Pipeline: id, States: []job.State{job.Cancelled, job.Failed}, Children: &all}, false)
	is.NoErr(err)
	is.Equal(m.Done, 3)
	is.Equal(queryOne[[]int](t, pool, `select array[open, failed] from trapeze.fan_outs where id = $1`, id), []int{2, 0})
	for _, child := range awaiting(t, pool, "risky", 2) {
		is.NoErr(r.Admin("bob").Approve(t.Context(), child))
	}
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.job where pipeline_id = $1 and state <> 'succeeded'`, id), 0)
	checkHistory(t, pool, r)
}
