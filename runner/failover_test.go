package runner_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// narrow returns a pool with a single connection.
func narrow(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestHandlerReadOnlyTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := narrow(t, pgtest.URL(t))
	var calls atomic.Int64
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		return new(runner.Outcome).InTx(func(ctx context.Context, tx pgx.Tx) error {
			calls.Add(1)
			_, err := tx.Exec(ctx, `set transaction read only`)
			if err == nil {
				_, err = tx.Exec(ctx, `create table never (n int)`)
			}
			return err
		}), nil
	}})
	before := queryOne[int](t, pool, `select pg_backend_pid()`)
	j := waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), "25006"))
	is.Equal(calls.Load(), int64(1))
	is.Equal(queryOne[int](t, pool, `select pg_backend_pid()`), before)
}
