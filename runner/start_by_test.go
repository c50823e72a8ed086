package runner_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A job that does not start in time fails like any other: its failure steps run, and hooks learn of it.
func TestExpiredJobFails(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var seen ends
	r := start(t, pool, runner.Options{PodName: "a", OnEnd: seen.add}, map[string]handler{"k": succeed, "after": succeed})
	id := enqueue(t, r, rawArgs("nobody"), runner.AllowUnregistered(), runner.StartBy(time.Millisecond), runner.OnFailure(rawArgs("after")))
	in := enqueue(t, r, rawArgs("k"), runner.StartBy(time.Hour), runner.Subject("s"))
	is.Equal(waitEnded(t, r, in).State, job.Succeeded)
	pgtest.WaitFor(t, 90*time.Second, "the job expires", func() bool { return len(seen.of(id)) > 0 })
	end := seen.of(id)[0]
	is.Equal([]any{end.State, end.Reason}, []any{job.Failed, job.ReasonExpired})
	pgtest.Wait(t, "the failure step ends", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.job where kind = 'after' and state = 'succeeded'`) == 1
	})
	checkHistory(t, pool, r)
}

// Every way to submit a job stores the same limit.
func TestStartLimitOfSubmissions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	limit := runner.StartBy(time.Hour)
	for _, more := range [][]runner.EnqueueOption{nil, {runner.Subject("s"), runner.Ordered()}, {runner.Delay(time.Minute)}} {
		options := append(more, limit)
		enqueue(t, r, rawArgs("k"), options...)
		_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("k")}, options...)
		is.NoErr(err)
		is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
			_, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"), options...)
			return err
		}))
		_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"), options...)
		is.NoErr(err)
		is.Equal(queryOne[int](t, pool, `select count(*) from (select id, start_by from trapeze.live union all select id, start_by from trapeze.parked) p
			join trapeze.jobs j using (id) where p.start_by = j.created_at + interval '1 hour' and j.ordered = (j.subject <> '')`), 4)
		exec(t, pool, `truncate trapeze.live, trapeze.parked, trapeze.jobs, trapeze.unique_keys, trapeze.subjects`)
	}
	many := make([]job.Args, 2000)
	for i := range many {
		many[i] = rawArgs("k")
	}
	_, err := r.EnqueueMany(t.Context(), many, limit)
	is.NoErr(err)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live l join trapeze.jobs j using (id) where l.start_by - j.created_at between '59 min' and '61 min'`), 2000)
}

func TestInvalidStartLimits(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	for want, options := range map[string][]runner.EnqueueOption{
		"invalid request: StartBy(0s), want more than 0 (kind k)":                {runner.StartBy(0)},
		"invalid request: StartBy(-1s), want more than 0 (kind k)":               {runner.StartBy(-time.Second)},
		"invalid request: start by 1m0s is not after the delay of 1m0s (kind k)": {runner.StartBy(time.Minute), runner.Delay(time.Minute)},
	} {
		_, err := r.Enqueue(t.Context(), rawArgs("k"), options...)
		is.True(errors.Is(err, job.ErrInvalid))
		is.Equal(err.Error(), want)
	}
	for _, sql := range []string{
		`select trapeze.enqueue('k', start_by => now())`,
		`select trapeze.enqueue('k', start_by => now() + interval '1 min', run_at => now() + interval '1 min')`,
		`select trapeze.enqueue('k', ordered => true)`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		is.True(err != nil)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 0)
}
