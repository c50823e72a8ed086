package runner_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// A submission changes planner settings only for its own statement.
func TestSubmissionKeepsPlannerSettings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	conn, err := pool.Acquire(t.Context())
	is.NoErr(err)
	defer conn.Release()
	settings := func() (list []string) {
		for _, name := range []string{"plan_cache_mode", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "jit", "random_page_cost", "seq_page_cost"} {
			var value string
			is.NoErr(conn.QueryRow(t.Context(), `select current_setting($1)`, name).Scan(&value))
			list = append(list, value)
		}
		return list
	}
	before := settings()
	is.NoErr(pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		for _, own := range []string{`set local plan_cache_mode = force_custom_plan`, `set local enable_mergejoin = off`, `set enable_bitmapscan = off`} {
			_, err := tx.Exec(t.Context(), own)
			is.NoErr(err)
		}
		inside := settings()
		for _, n := range []int{1, 10, 250} {
			_, err := r.EnqueueManyTx(t.Context(), tx, many("k", n))
			is.NoErr(err)
			is.Equal(settings(), inside)
		}
		_, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"), runner.Unique("key", runner.WhileActive), runner.IdempotencyKey("key"))
		is.NoErr(err)
		is.Equal(settings(), inside)
		return nil
	}))
	before[4] = "off" // set for the whole session, not only the transaction
	is.Equal(settings(), before)
}
