package runner_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// PostgreSQL 17 closes the connection of a transaction that exceeds transaction_timeout. The engine's own statement is repeated, and the
// handler's function fails the attempt. The error is raised here on every version of PostgreSQL, by a trigger on the claim's row.
func TestTransactionTimeoutAttempts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Done(nil).InTx(func(context.Context, pgx.Tx) error { return nil }), nil
	}}, runner.Retry(1, soon))
	exec(t, pool, `create sequence ends;
		create function once() returns trigger language plpgsql as $$ begin
			if nextval('ends') = 1 then raise 'for once' using errcode = '25P04'; end if; return old;
		end $$;
		create trigger once before delete on trapeze.live for each row execute function once()`)
	j := waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Attempt, 1)
	is.True(queryOne[int64](t, pool, `select last_value from ends`) > 1)
}

// A handler that begins transactions on the pool and never ends them starves later ones. Their errors name the pool.
func TestTransactionOnExhaustedPool(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.WithParameter(pgtest.URL(t), "pool_max_conns=1"))
	unended, err := pool.Begin(t.Context())
	is.NoErr(err)
	done := func(context.Context, pgx.Tx) error { return nil }
	r := start(t, pool, runner.Options{}, map[string]handler{
		"in-tx": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Done(nil).InTx(done), nil },
		"tx": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(tx pgx.Tx) error { return done(ctx, tx) }, nil)
		},
	}, runner.Timeout(100*time.Millisecond))
	for _, kind := range []string{"in-tx", "tx"} {
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(*j.Reason, job.ReasonTimeout)
		is.True(strings.Contains(message(j), "all connections of the pool (1) stayed in use"))
	}
	is.NoErr(unended.Rollback(t.Context()))
}
