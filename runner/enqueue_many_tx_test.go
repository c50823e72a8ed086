package runner_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Jobs submitted in a transaction exist if and only if it commits, whether they are inserted with COPY or with a single statement.
func TestEnqueueManyInTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	for _, n := range []int{0, 3, 250, 2_100} {
		tx, err := pool.Begin(t.Context())
		is.NoErr(err)
		ids, err := r.EnqueueManyTx(t.Context(), tx, many("k", n))
		is.NoErr(err)
		is.Equal(len(ids), n)
		is.NoErr(tx.Rollback(t.Context()))
	}
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.jobs`), 0)
	all := 0
	for _, n := range []int{0, 3, 250, 2_100} {
		var ids []int64
		is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) (err error) {
			ids, err = r.EnqueueManyTx(t.Context(), tx, many("k", n), runner.Priority(3))
			return err
		}))
		inOrder := `select count(*)::int from unnest($1::bigint[]) with ordinality as w(id, no) join trapeze.jobs j using (id) where j.args::text = w.no::text`
		is.Equal(queryOne[int](t, pool, inOrder, ids), n)
		all += n
	}
	pgtest.WaitFor(t, time.Minute, "all have run", func() bool {
		return queryOne[int](t, pool, `select count(*)::int from trapeze.job where state = 'succeeded' and priority = 3`) == all
	})
	checkHistory(t, pool, r)
}

// If a submission is rejected, only its own jobs are rolled back. The caller can still commit the rest of the transaction.
func TestRefusedEnqueueManyInTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	exec(t, pool, `create table mine (id bigint)`)
	exec(t, pool, `create unique index on trapeze.jobs ((args::text)) where args::text = '7'`)
	for _, n := range []int{10, 250} {
		is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `insert into mine values ($1)`, n)
			is.NoErr(err)
			_, err = r.EnqueueManyTx(t.Context(), tx, append(many("k", n), rawArgs("k", "7")))
			is.True(err != nil)
			for _, refused := range []struct {
				list    []job.Args
				options []runner.EnqueueOption
				want    error
			}{
				{many("unknown", n), nil, job.ErrUnknownKind},
				{many("k", n), []runner.EnqueueOption{runner.Lane("none")}, job.ErrUnknownLane},
				{many("k", n), []runner.EnqueueOption{runner.IdempotencyKey("x")}, job.ErrInvalid},
				{append(many("k", n), nil), nil, job.ErrInvalidArgs},
			} {
				_, err := r.EnqueueManyTx(t.Context(), tx, refused.list, refused.options...)
				is.True(errors.Is(err, refused.want))
			}
			return nil
		}))
	}
	is.Equal(queryOne[int](t, pool, `select count(*)::int from mine`), 2)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.jobs`), 0)
}

// A lane's approval rule and a delay apply to a batch of jobs in a transaction exactly as they do to a single job.
func TestEnqueueManyApprovalAndDelay(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	yes := true
	_, err := r.Admin("ann").SetLane(t.Context(), "guarded", job.LaneChange{Slots: job.To(2), RequiresApproval: &yes})
	is.NoErr(err)
	for want, option := range map[job.State]runner.EnqueueOption{job.AwaitingApproval: runner.Lane("guarded"), job.Pending: runner.Delay(time.Hour)} {
		is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
			_, err := r.EnqueueManyTx(t.Context(), tx, many("k", 250), option)
			return err
		}))
		is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.job where state = $1`, want), 250)
	}
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.live`), 0)
}
