package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func statusOf(t *testing.T, pool *pgxpool.Pool, id int64) string {
	t.Helper()
	return queryOne[string](t, pool, `select coalesce((select status from trapeze.pipeline where id = $1), 'running')`, id) // a job without a next step has no pipeline row yet
}

// waitPipeline waits until a pipeline has finished and returns its status.
func waitPipeline(t *testing.T, pool *pgxpool.Pool, id int64) (status string) {
	t.Helper()
	pgtest.WaitFor(t, time.Minute, fmt.Sprintf("pipeline %d is over", id), func() bool {
		status = statusOf(t, pool, id)
		return status != "running"
	})
	return status
}

// many returns n children of a kind, with their numbers as arguments.
func many(kind string, n int) []job.Args {
	list := make([]job.Args, n)
	for i := range list {
		list[i] = rawArgs(kind, fmt.Sprint(i+1))
	}
	return list
}

// number is a handler that returns the job's arguments as its result.
func number(_ context.Context, j *raw) (*runner.Outcome, error) { return runner.Done(j.Args.JSON), nil }

// sum returns a join handler that adds up the results of the branches that succeeded.
func sum(t *testing.T, joined *atomic.Int64) handler {
	return func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		joined.Add(1)
		total, failed := 0, 0
		for b, err := range j.Branches(ctx) {
			if err != nil {
				return nil, err
			}
			if b.State != job.Succeeded {
				failed++
				continue
			}
			var n int
			if err := b.Result(&n); err != nil {
				return nil, err
			}
			total += n
		}
		return runner.Done(map[string]int{"total": total, "failed": failed}), nil
	}
}

func TestJoinAfterAllChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var joined atomic.Int64
	hold, open := latch(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("child", 50)...).Join(rawArgs("join")).Result("from the parent"), nil
		},
		"child": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if string(j.Args.JSON) == "50" {
				<-hold
			}
			return number(ctx, j)
		},
		"join": sum(t, &joined),
	})
	id := enqueue(t, r, rawArgs("parent"), runner.Subject("s"))
	parent := inState(t, r, id, job.Waiting)
	pgtest.Wait(t, "49 children have ended", func() bool {
		return queryOne[int](t, pool, `select open from trapeze.fan_outs where id = $1`, id) == 1
	})
	is.Equal(parent.Pod, nil) // the parent holds no lease
	pgtest.Wait(t, "it holds no slot: only the last child runs", func() bool { return r.Running() == 1 })
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.subjects where state = 'held'`), 0) // its subject is free
	waiting := get(t, r, id)
	is.Equal(*waiting.Progress.Done, int64(49)) // its progress is the number of finished children
	is.Equal(*waiting.Progress.Total, int64(50))
	is.Equal(statusOf(t, pool, id), "running") // the pipeline is still running
	open()
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(joined.Load(), int64(1))
	join := get(t, r, queryOne[int64](t, pool, `select id from trapeze.jobs where kind = 'join'`))
	is.Equal(string(join.Result), `{"failed":0,"total":1275}`) // the join saw every result
	is.Equal(*join.ParentID, id)
	is.Equal(join.PipelineID, id)
	is.Equal(join.Subject, "s") // inherited, as by a next step
	ended := get(t, r, id)
	is.Equal(ended.State, job.Succeeded)
	is.Equal(string(ended.Result), `"from the parent"`)
	is.Equal(eventsOf(t, r, id), []string{"job.enqueued", "job.claimed", "job.waiting", "job.succeeded"})
	checkHistory(t, pool, r)
}

// A job that fans out into no children succeeds immediately, and its join runs.
func TestFanOutWithoutChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var joined atomic.Int64
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut().Join(rawArgs("join")), nil
		},
		"join": sum(t, &joined),
	})
	is.Equal(waitPipeline(t, pool, enqueue(t, r, rawArgs("parent"), runner.Pipeline("none"))), "succeeded")
	is.Equal(joined.Load(), int64(1))
	checkHistory(t, pool, r)
}

func TestFailedChildrenByPolicy(t *testing.T) {
	t.Parallel()
	type policy struct {
		bad      int // number of children that fail, out of four
		failFast bool
		join     bool
		parent   job.State
		joined   int64
		pipeline string
	}
	var (
		now    atomic.Pointer[policy]
		joined atomic.Int64
	)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			o := runner.FanOut(many("child", 4)...)
			if now.Load().join {
				o = o.Join(rawArgs("join"))
			}
			if now.Load().failFast {
				o = o.FailFast()
			}
			return o, nil
		},
		"child": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			c := now.Load()
			if len(j.Args.JSON) > 0 && int(j.Args.JSON[0]-'0') <= c.bad {
				return nil, errors.New("bad")
			}
			if c.failFast && c.bad > 0 {
				<-ctx.Done() // cancelled because a sibling failed
				return nil, context.Cause(ctx)
			}
			return number(ctx, j)
		},
		"join": sum(t, &joined),
	})
	for name, c := range map[string]policy{
		"one of four":                {bad: 1, join: true, parent: job.Succeeded, joined: 1, pipeline: "partial"},
		"one of four, without join":  {bad: 1, parent: job.Succeeded, pipeline: "partial"},
		"all of four":                {bad: 4, join: true, parent: job.Failed, pipeline: "failed"},
		"one of four, failing fast":  {bad: 1, failFast: true, join: true, parent: job.Failed, pipeline: "failed"},
		"none of four, failing fast": {failFast: true, join: true, parent: job.Succeeded, joined: 1, pipeline: "succeeded"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			now.Store(&c)
			joined.Store(0)
			id := enqueue(t, r, rawArgs("parent"))
			is.Equal(waitPipeline(t, pool, id), c.pipeline)
			quiet(t, pool)
			parent := get(t, r, id)
			is.Equal(parent.State, c.parent)
			is.Equal(joined.Load(), c.joined)
			if c.bad > 0 {
				is.Equal(reasonOf(parent), job.ReasonChildrenFailed)
				is.Equal(message(parent), fmt.Sprintf("%d of 4 children failed", c.bad))
			}
			if c.failFast && c.bad > 0 {
				is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job where pipeline_id = $1 and state = 'cancelled'`, id), 3) // the siblings were cancelled
			}
			pgtest.Wait(t, "the fan-out is settled", func() bool {
				return queryOne[bool](t, pool, `select ended and open = 0 from trapeze.fan_outs where id = $1`, id)
			})
		})
	}
	checkHistory(t, pool, r)
}

// A branch includes everything that follows the child: a chain, or another fan-out with its join.
func TestBranchesWithNestedFanOuts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var joined, inner atomic.Int64
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.Chain(rawArgs("child", "1"), rawArgs("child", "10")), rawArgs("fans"), rawArgs("bare")).Join(runner.Chain(rawArgs("join"), rawArgs("last"))), nil
		},
		"child": number,
		"bad":   func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("bad") },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(append(many("child", 3), rawArgs("bad"))...).Join(rawArgs("inner")), nil
		},
		"bare": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("child", 2)...).Result(100), nil
		},
		"inner": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			inner.Add(1)
			for b, err := range j.Branches(ctx) {
				is.NoErr(err)
				is.True(b.No != 4 || b.State == job.Failed)
			}
			return runner.Done(1000), nil
		},
		"join": sum(t, &joined),
		"last": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var before map[string]int
			if err := j.PreviousResult(ctx, &before); err != nil {
				return nil, err
			}
			return runner.Done(before["total"] + 1), nil
		},
	})
	id := enqueue(t, r, runner.Chain(rawArgs("parent"), rawArgs("child", "7")))
	is.Equal(waitPipeline(t, pool, id), "partial") // a nested branch failed
	is.Equal(joined.Load(), int64(1))
	is.Equal(inner.Load(), int64(1))
	is.Equal(queryOne[string](t, pool, `select string_agg(result::text, ' ' order by step) from trapeze.job where kind = 'last' or group_id is null and kind = 'child'`), "1111 7") // 10 + 1000 + 100; the chain continues after the join
	checkHistory(t, pool, r)
}

func TestOversizedFanOut(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := named("a")
	o.MaxFanOut = 3
	r := start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) { return runner.FanOut(many("child", 4)...), nil },
		"child":  number,
	})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("parent")))
	is.Equal(j.State, job.Failed)
	is.Equal(message(j), "too large: fan-out of 4 children, at most 3")
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 1) // no child was inserted
	checkHistory(t, pool, r)
}

// AllowUnregistered applies only to a single step. Otherwise, a step with a misspelled kind later in the chain would wait forever.
func TestJoinChainUnknownKind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child")).Join(runner.Chain(runner.With(rawArgs("elsewhere"), runner.AllowUnregistered()), rawArgs("misspelt"))), nil
		},
		"child": number,
	})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("parent")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), `plan step "misspelt"`))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 1) // no child was inserted
}

// The handler's writes, the end of its run and its children share one commit, so a child can read its parent's writes.
func TestChildrenReadParentsWrites(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (job bigint)`)
	var mu sync.Mutex
	seen := 0
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("child", 20)...).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
				return err
			}), nil
		},
		"child": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var n int
			err := pool.QueryRow(ctx, `select count(*) from rows`).Scan(&n)
			mu.Lock()
			defer mu.Unlock()
			seen += n
			return nil, err
		},
	})
	id := enqueue(t, r, rawArgs("parent"))
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(seen, 20)
	checkHistory(t, pool, r)
}
