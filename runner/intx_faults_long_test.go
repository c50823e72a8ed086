//go:build long

package runner_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A fault of the function, or of another server that it uses, is an ordinary failed attempt. The function is not called again.
func TestFaultInsideJobTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (what text)`)
	elsewhere := func(ctx context.Context, sql string) error {
		other, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig.Copy())
		if err != nil {
			return err
		}
		defer other.Close(ctx)
		_, err = other.Exec(ctx, sql)
		return err
	}
	raised := func(ctx context.Context, code string) error {
		return elsewhere(ctx, `do $$ begin raise 'elsewhere' using errcode = '`+code+`'; end $$`)
	}
	statement := func(ctx context.Context, tx pgx.Tx, list ...string) error {
		for _, sql := range list {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	}
	const insert = `insert into rows values ('lost')`
	faults := map[string]struct {
		write func(ctx context.Context, tx pgx.Tx) error
		says  string
	}{
		"open-rows": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `select generate_series(1, 100000)`)
			return err
		}, "left rows open: close them"},
		"busy": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Query(ctx, `select generate_series(1, 100000)`)
			return statement(ctx, tx, `select 1`)
		}, "left rows open: close them"},
		"restart-elsewhere": {func(ctx context.Context, tx pgx.Tx) error {
			return elsewhere(ctx, `select pg_terminate_backend(pg_backend_pid())`)
		}, "57P01"},
		"08006-elsewhere": {func(ctx context.Context, tx pgx.Tx) error { return raised(ctx, "08006") }, "08006"},
		"40001-elsewhere": {func(ctx context.Context, tx pgx.Tx) error { return raised(ctx, "40001") }, "40001"},
		"53300-elsewhere": {func(ctx context.Context, tx pgx.Tx) error { return raised(ctx, "53300") }, "53300"},
		"joined":          {func(ctx context.Context, tx pgx.Tx) error { return errors.Join(errors.New("no"), raised(ctx, "57P01")) }, "no\n"},
		"conn-elsewhere":  {func(ctx context.Context, tx pgx.Tx) error { return pgx.ErrTxClosed }, "closed"},
		"own-deadline": {func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return statement(ctx, tx, `select pg_sleep(20)`)
		}, "deadline"},
		"ignored-error": {func(ctx context.Context, tx pgx.Tx) error {
			_ = statement(ctx, tx, `select 1 / 0`)
			return nil
		}, "ignored the error of a statement"},
		"closed":           {func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) }, "closed its connection"},
		"commit":           {func(ctx context.Context, tx pgx.Tx) error { return statement(ctx, tx, `commit`) }, "ended the transaction"},
		"rollback":         {func(ctx context.Context, tx pgx.Tx) error { return statement(ctx, tx, insert, `rollback`) }, "ended the transaction"},
		"commit-begin":     {func(ctx context.Context, tx pgx.Tx) error { return statement(ctx, tx, `commit`, `begin`, insert) }, "ended the transaction"},
		"rollback-begin":   {func(ctx context.Context, tx pgx.Tx) error { return statement(ctx, tx, `rollback`, `begin`) }, "ended the transaction"},
		"commit-and-chain": {func(ctx context.Context, tx pgx.Tx) error { return statement(ctx, tx, `commit and chain`, insert) }, "ended the transaction"},
	}
	var calls atomic.Int64
	counting := func(name string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { calls.Add(1); return faults[name].write(ctx, tx) }
	}
	of2 := func(j *raw) string { return strings.Trim(string(j.Args.JSON), `"`) }
	inTx := func(ctx context.Context, j *raw, checkpoint any) error {
		return j.Tx(ctx, func(tx pgx.Tx) error { return counting(of2(j))(ctx, tx) }, checkpoint)
	}
	handlers := map[string]handler{
		"in-tx": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(counting(of2(j))), nil
		},
		"fan-out": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child")).InTx(counting(of2(j))), nil
		},
		"tx":         func(ctx context.Context, j *raw) (*runner.Outcome, error) { return nil, inTx(ctx, j, nil) },
		"checkpoint": func(ctx context.Context, j *raw) (*runner.Outcome, error) { return nil, inTx(ctx, j, 1) },
		"child":      succeed,
	}
	r := start(t, pool, runner.Options{Slots: 1}, handlers, runner.Retry(1, soon), runner.Timeout(20*time.Second))
	for _, kind := range []string{"in-tx", "fan-out", "tx", "checkpoint"} {
		for name, fault := range faults {
			t.Run(kind+"/"+name, func(t *testing.T) {
				is := is.New(t)
				calls.Store(0)
				j := waitEnded(t, r, enqueue(t, r, rawArgs(kind, `"`+name+`"`)))
				is.Equal(j.State, job.Failed)
				is.Equal(*j.Reason, job.ReasonError)
				is.True(strings.Contains(message(j), fault.says))
				is.Equal(calls.Load(), int64(1))
				is.Equal(queryOne[int](t, pool, `select count(*) from rows`), 0)
			})
		}
	}
	is := is.New(t)
	is.Equal(pool.Stat().AcquiredConns(), int32(0)) // no connection is leaked
	checkHistory(t, pool, r)
}

// A function that breaks its own connection on each call is called again only a few times.
func TestTransactionBreaksConnectionEachTime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var calls atomic.Int64
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
			calls.Add(1)
			_, err := tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
			return err
		}), nil
	}}, runner.Retry(1, soon))
	j := waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), "57P01"))
	is.Equal(calls.Load(), int64(9))
	checkHistory(t, pool, r)
}
