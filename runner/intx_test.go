package runner_test

import (
	"context"
	"errors"
	"runtime"
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

func TestRolledBackFinishWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table unique_rows (n int unique deferrable initially immediate); insert into unique_rows values (1)`)
	insert := func(ctx context.Context, tx pgx.Tx, n int) error {
		_, err := tx.Exec(ctx, `insert into unique_rows values ($1)`, n)
		return err
	}
	var calls atomic.Int64
	endings := map[string]struct {
		write func(ctx context.Context, tx pgx.Tx) error
		says  string
	}{
		"an-error":              {func(ctx context.Context, tx pgx.Tx) error { return errors.Join(insert(ctx, tx, 2), errors.New("no")) }, "no"},
		"a-panic":               {func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx, 2); panic("no") }, "in InTx or Write: panic: no"},
		"an-exit":               {func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx, 2); runtime.Goexit(); return nil }, "Goexit"},
		"a-poisoned-connection": {func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx, 1); return nil }, "ignored the error of a statement"},
		"a-violation":           {func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, 1) }, "duplicate key"},
		"a-deferred-violation": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `set constraints all deferred`)
			return errors.Join(err, insert(ctx, tx, 1))
		}, "duplicate key"},
		"a-deadline-of-its-own": {func(ctx context.Context, tx pgx.Tx) error { calls.Add(1); return context.DeadlineExceeded }, "deadline"},
		"its-own-commit":        {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, "closed"},
	}
	handlers := map[string]handler{"child": succeed}
	for name, e := range endings {
		handlers[name] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("child")).Result("done").InTx(e.write), nil
		}
	}
	r := start(t, pool, runner.Options{Slots: 1}, handlers)
	for name, e := range endings {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs(name), runner.Subject("s")))
			is.Equal(j.State, job.Failed)
			is.True(strings.Contains(message(j), e.says))
			is.Equal(string(j.Result), "")
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id = $1`, j.ID), 0) // no child was inserted
			is.Equal(queryOne[int](t, pool, `select count(*) from unique_rows where n = 2`), 0)                 // no row was written
		})
	}
	is := is.New(t)
	is.Equal(calls.Load(), int64(1))                                                // a handler error that looks like a network error does not rerun the transaction
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("child"))).State, job.Succeeded) // the slot is free
	checkHistory(t, pool, r)
}

func TestFinishWriteOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table notes (id bigserial, what text)`)
	note := func(what string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into notes (what) values ($1)`, what)
			return err
		}
	}
	fails := func(context.Context, pgx.Tx) error { return errors.New("no") }
	r := start(t, pool, runner.Options{}, map[string]handler{
		"both": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(note("first")).InTx(note("second")).InTx(note("third")), nil
		},
		"first-fails": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(fails).InTx(note("not written")), nil
		},
		"second-fails": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(note("not written")).InTx(fails), nil
		},
	})
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("both"))).State, job.Succeeded)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("first-fails"))).State, job.Failed)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("second-fails"))).State, job.Failed)
	is.Equal(queryOne[string](t, pool, `select string_agg(what, ' ' order by id) from notes`), "first second third")
}

// A transaction opened inside another transaction of the same job would deadlock, so it is rejected. A concurrent transaction waits its
// turn.
func TestNestedJobTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table notes (what text)`)
	note := func(ctx context.Context, tx pgx.Tx, what string) error {
		_, err := tx.Exec(ctx, `insert into notes values ($1)`, what)
		return err
	}
	said := make(chan error, 3)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		inside, cancel := context.WithTimeout(ctx, 5*time.Second) // ends the wait if the inner transaction is not rejected
		defer cancel()
		err := j.Tx(ctx, func(tx pgx.Tx) error {
			said <- j.Tx(inside, func(tx pgx.Tx) error { return note(ctx, tx, "inside") }, nil)
			said <- j.Checkpoint(inside, 1)
			return note(ctx, tx, "outside")
		}, nil)
		if err != nil {
			return nil, err
		}
		begun, second := make(chan struct{}), make(chan error)
		go func() {
			<-begun
			second <- j.Tx(ctx, func(tx pgx.Tx) error { return note(ctx, tx, "beside") }, nil)
		}()
		if err := errors.Join(j.Tx(ctx, func(tx pgx.Tx) error { close(begun); return note(ctx, tx, "first") }, nil), <-second); err != nil {
			return nil, err
		}
		return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
			inside, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			said <- j.Tx(inside, func(tx pgx.Tx) error { return note(ctx, tx, "inside") }, nil)
			return note(ctx, tx, "last")
		}), nil
	}})
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
	for range cap(said) {
		err := <-said
		is.True(err != nil && strings.Contains(err.Error(), "a transaction is open"))
	}
	is.Equal(queryOne[string](t, pool, `select string_agg(what, ' ' order by what) from notes`), "beside first last outside")
	checkHistory(t, pool, r)
}

func TestFailedFinishWriteRetry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (attempt int)`)
	r := start(t, pool, runner.Options{}, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		return runner.Done(j.Attempt()).InTx(func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into rows values ($1)`, j.Attempt()); err != nil || j.Attempt() < 3 {
				return errors.Join(err, errors.New("not yet"))
			}
			return nil
		}), nil
	}}, runner.Retry(3, soon))
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("a"))).State, job.Succeeded)
	is.True(queryOne[bool](t, pool, `select array_agg(attempt) = '{3}' from rows`)) // only the last attempt wrote a row, exactly once
}

func TestBatchCheckpointAcrossRetries(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (n int)`)
	r := start(t, pool, runner.Options{}, map[string]handler{"batches": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		var done int
		if _, err := j.LastCheckpoint(&done); err != nil {
			return nil, err
		}
		for n := done + 1; n <= 9; n++ {
			err := j.Tx(ctx, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `insert into rows values ($1)`, n); err != nil {
					return err
				}
				if n == j.Attempt()*3+1 {
					return errors.New("torn")
				}
				return nil
			}, n)
			if err != nil {
				return nil, err
			}
		}
		return runner.Done(done), nil
	}}, runner.Retry(5, soon))
	j := waitEnded(t, r, enqueue(t, r, rawArgs("batches")))
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Attempt, 3)
	is.Equal(string(j.Result), "6") // the third attempt started after the sixth batch
	is.Equal(queryOne[int](t, pool, `select count(*) from rows`), 9)
	is.Equal(queryOne[int](t, pool, `select count(distinct n) from rows`), 9) // no row was written twice
}

// If a handler makes its transaction read-only, the resulting error counts as the handler's error. The transaction is not retried, as it
// would be if the server were a standby.
func TestJobTransactionSetReadOnly(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var writes atomic.Int64
	readOnly := func(ctx context.Context, tx pgx.Tx) error {
		writes.Add(1)
		_, err := tx.Exec(ctx, `set transaction read only`)
		return err
	}
	r := start(t, pool, runner.Options{}, map[string]handler{
		"in-tx": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Done(nil).InTx(readOnly), nil },
		"tx": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(tx pgx.Tx) error { return readOnly(ctx, tx) }, 1)
		},
	}, runner.Retry(1, soon))
	for _, kind := range []string{"in-tx", "tx"} {
		is := is.New(t)
		writes.Store(0)
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(j.State, job.Failed)
		is.True(strings.Contains(message(j), "read-only transaction"))
		is.Equal(writes.Load(), int64(1))
	}
	checkHistory(t, pool, r)
}

func TestJobTransactionAfterStop(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (n int)`)
	got := make(chan error, 1)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{HeartbeatInterval: 2 * time.Second}, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-wait
		got <- j.Tx(context.WithoutCancel(ctx), func(tx pgx.Tx) error {
			_, err := tx.Exec(context.WithoutCancel(ctx), `insert into rows values (1)`)
			return err
		}, 1)
		return nil, nil
	}})
	other := newRunner(t, pool, runner.Options{}, nil)
	id := enqueueStarted(t, r, rawArgs("a"))
	_, err := other.Admin("").ForceCancel(t.Context(), id)
	is.NoErr(err)
	open()
	is.True(errors.Is(<-got, job.ErrLeaseLost))
	is.Equal(queryOne[int](t, pool, `select count(*) from rows`), 0) // nothing was written
}
