package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// queued returns a batch of statements without arguments.
func queued(statements ...string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, s := range statements {
		b.Queue(s)
	}
	return b
}

// pages returns a handler that writes n pages of two rows, one batch per page, starting after its checkpoint. Rows must be unique, so
// writing a page twice fails.
func pages(n int, before func(ctx context.Context, j *raw, page int, b *pgx.Batch) error) handler {
	return func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		done, err := last(j)
		if err != nil {
			return nil, err
		}
		for page := done + 1; page <= n; page++ {
			b := &pgx.Batch{}
			b.Queue(`insert into pages values ($1, 1)`, page)
			b.Queue(`insert into pages values ($1, 2)`, page)
			if err := before(ctx, j, page, b); err != nil {
				return nil, err
			}
			if err := j.Write(ctx, page, b); err != nil {
				return nil, err
			}
			if kept, err := last(j); err != nil || kept != page {
				return nil, errors.Join(err, errors.New("the checkpoint is not the latest"))
			}
		}
		return runner.Done(done), nil
	}
}

const pagesTable = `create table pages (page int, no int, primary key (page, no))`

func TestPageCheckpointFailedStatement(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, pagesTable)
	r := start(t, pool, runner.Options{}, map[string]handler{"pages": pages(9, func(_ context.Context, j *raw, page int, b *pgx.Batch) error {
		if page == j.Attempt()*3+1 {
			b.Queue(`select 1/0`)
		}
		return nil
	})}, runner.Retry(5, soon))
	j := waitEnded(t, r, enqueue(t, r, rawArgs("pages")))
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Attempt, 3)
	is.Equal(string(j.Result), "6") // the third attempt started after the sixth page
	is.Equal(queryOne[int](t, pool, `select count(*) from pages`), 18)
	checkHistory(t, pool, r)
}

// The pod with the first claim freezes between two pages. By the time it wakes up, another pod has continued the job, so the first pod can
// no longer write.
func TestPageOfFormerOwner(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, pagesTable)
	proxy, cut := cable(t, url)
	kept, late := make(chan struct{}), make(chan error, 1)
	wait, open := latch(t)
	a := start(t, cut, named("a"), map[string]handler{"pages": pages(9, func(ctx context.Context, j *raw, page int, b *pgx.Batch) error {
		if page <= 3 {
			return nil
		}
		close(kept)
		<-wait
		late <- j.Write(context.WithoutCancel(ctx), page, b)
		return errors.New("late")
	})}, runner.ContinueWithoutDatabase())
	id := enqueueStarted(t, a, rawArgs("pages"))
	<-kept
	proxy.Blackhole()
	taken := make(chan int, 1)
	hold, release := latch(t)
	b := start(t, direct, named("b"), map[string]handler{"pages": pages(9, func(_ context.Context, _ *raw, page int, _ *pgx.Batch) error {
		if page == 4 {
			taken <- page
			<-hold
		}
		return nil
	})})
	is.Equal(<-taken, 4) // the other pod continues after the first pod's last page
	proxy.Pass()
	open()
	is.True(errors.Is(<-late, job.ErrLeaseLost))
	is.Equal(queryOne[int](t, direct, `select count(*) from pages`), 6)
	release()
	is.Equal(string(waitEnded(t, b, id).Result), "3")
	is.Equal(queryOne[int](t, direct, `select count(*) from pages`), 18)
}

func TestPageOfCancelledJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, pagesTable)
	got := make(chan error, 2)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		got <- j.Write(ctx, 1, queued(`insert into pages values (1, 1)`))
		got <- j.Write(context.WithoutCancel(ctx), 1, queued(`insert into pages values (1, 1)`))
		return nil, nil
	}})
	id := enqueueStarted(t, r, rawArgs("k"))
	_, err := r.Admin("").Cancel(t.Context(), id)
	is.NoErr(err)
	is.True(errors.Is(<-got, job.ErrCancelled)) // rejected because the context is cancelled
	is.True(errors.Is(<-got, job.ErrCancelled)) // rejected because the job's row is marked as cancelled
	is.Equal(waitEnded(t, r, id).State, job.Cancelled)
	is.Equal(queryOne[int](t, pool, `select count(*) from pages`), 0)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_progress where id = $1`, id), 0)
}

func TestPageWriteReplyLost(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, pagesTable)
	proxy, cut := cable(t, url)
	r := start(t, cut, named("a"), map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		for page, sent := range []string{"insert into pages", `"marked"`} { // first the statements, then the checkpoint with the commit
			lost := proxy.CutReplyOnce(holds(sent))
			b := &pgx.Batch{}
			b.Queue(`insert into pages values ($1, 1)`, page)
			if err := j.Write(ctx, "marked", b); err != nil {
				return nil, err
			}
			<-lost
		}
		return nil, nil
	}})
	id := enqueue(t, r, rawArgs("k"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.Equal(queryOne[int](t, direct, `select count(*) from pages`), 2)
	is.Equal(queryOne[string](t, direct, `select checkpoint::text from trapeze.job_progress where id = $1`, id), `"marked"`)
}

func TestRejectedJobWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, pagesTable+`; create sequence calls;
		create function fails_once(code text) returns void language plpgsql as $$ begin
			if nextval('calls') = 1 then raise 'for once' using errcode = code; end if;
		end $$`)
	const insert = `insert into pages values (1, 1)`
	read := queued(insert)
	read.Queue(`select 1`).QueryRow(func(pgx.Row) error { return nil })
	bad, many := queued(insert), &pgx.Batch{}
	bad.Queue(`insert into pages values ($1, 1)`, "no number")
	for range 101 {
		many.Queue(`select 1`)
	}
	cases := map[string]struct {
		batch *pgx.Batch
		is    error
		says  string
	}{
		"a function":     {read, job.ErrInvalid, "statement 2 has a function that reads its result"},
		"commit":         {queued(insert, `commit`), job.ErrInvalid, `statement 2 begins with "commit"`},
		"many":           {many, job.ErrTooLarge, "101 statements"},
		"a violation":    {queued(insert, insert), nil, `: statement 2 of 2: ERROR: duplicate key value violates unique constraint "pages_pkey" (SQLSTATE 23505)`},
		"an argument":    {bad, nil, ": statement 2 of 2: "},
		"no such table":  {queued(insert, `insert into nowhere values (1)`), nil, ": statement 2 of 2: "},
		"no checkpoint":  {queued(`select 1`), nil, ""},
		"nothing":        {nil, nil, ""},
		"a deadlock":     {queued(`select fails_once('40P01')`), nil, ""},
		"serialization":  {queued(`select fails_once('40001')`), nil, ""},
		"a lock timeout": {queued(`select fails_once('55P03')`), nil, ""},
	}
	got := make(chan error, 1)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		name := strings.Trim(string(j.Args.JSON), `"`)
		if name == "no checkpoint" {
			got <- j.Write(ctx, nil, cases[name].batch)
		} else {
			got <- j.Write(ctx, 1, cases[name].batch)
		}
		return nil, nil
	}})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			exec(t, pool, `alter sequence calls restart`)
			id := enqueue(t, r, rawArgs("k", `"`+name+`"`))
			err := <-got
			is.Equal(waitEnded(t, r, id).State, job.Succeeded)
			kept := queryOne[int](t, pool, `select count(*) from trapeze.job_progress where id = $1`, id)
			if c.says == "" {
				is.NoErr(err)
				is.Equal(kept == 1, name != "no checkpoint")
				return
			}
			is.True(strings.Contains(err.Error(), c.says)) // the error states the reason
			is.True(c.is == nil || errors.Is(err, c.is))
			is.Equal(kept, 0)
			is.Equal(queryOne[int](t, pool, `select count(*) from pages`), 0)
		})
	}
}

func TestPageWriteInsideJobTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		return nil, j.Tx(ctx, func(pgx.Tx) error { return j.Write(ctx, 1, queued(`select 1`)) }, nil)
	}})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	is.True(strings.Contains(message(j), "a transaction is open"))
}
