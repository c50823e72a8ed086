// Package documented contains the code shown in the guides in docs. A test in cmd/trapeze checks that the code and the guides match.
package documented

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type Bill struct{ Order int64 }
type Send struct{ Order int64 }
type Load struct {
	File  string
	Pages int
}
type Recalculate struct{}

func (Bill) Kind() string        { return "bill" }
func (Send) Kind() string        { return "send" }
func (Load) Kind() string        { return "load" }
func (Recalculate) Kind() string { return "recalculate" }

func price(_ context.Context, b Bill) (cents int64, err error) { return 100 * b.Order, nil }

type row struct {
	No   int
	Text string
}

// read returns one page of a file.
func read(file string, page int) []row {
	return []row{{2 * page, strings.ToUpper(file)}, {2*page + 1, file}}
}

func bill(ctx context.Context, j *runner.Job[Bill]) (*runner.Outcome, error) {
	total, err := price(ctx, j.Args)
	if err != nil {
		return nil, err
	}
	return runner.Then(Send{Order: j.Args.Order}).
		Write(`insert into bills (order_id, cents) values ($1, $2)`, j.Args.Order, total), nil
}

func load(ctx context.Context, j *runner.Job[Load]) (*runner.Outcome, error) {
	var page int
	if _, err := j.LastCheckpoint(&page); err != nil {
		return nil, err
	}
	for ; page < j.Args.Pages; page++ {
		batch := &pgx.Batch{}
		for _, row := range read(j.Args.File, page) {
			batch.Queue(`insert into rows (file, no, text) values ($1, $2, $3)`, j.Args.File, row.No, row.Text)
		}
		if err := j.Write(ctx, page+1, batch); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func send(context.Context, *runner.Job[Send]) (*runner.Outcome, error) { return nil, nil }

func recalculate(context.Context, *runner.Job[Recalculate]) (*runner.Outcome, error) { return nil, nil }

func register(r *runner.Runner) {
	runner.Handle(r, bill)
	runner.Handle(r, load)
	runner.Handle(r, send)
	runner.Handle(r, recalculate)
	r.DeclareSchedule("nightly", "30 2 * * *", Recalculate{}, runner.Zone("Europe/Zurich"), runner.SkipOverlap()) // call it before Run
}

// placeOrder inserts an order and submits the job that bills it, in one transaction.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, r *runner.Runner, order int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (id) values ($1)`, order); err != nil {
			return err
		}
		_, err := r.EnqueueTx(ctx, tx, Bill{Order: order})
		return err
	})
}

func TestGuideCode(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	_, err := pool.Exec(t.Context(), `create table orders (id bigint primary key); create table bills (order_id bigint, cents bigint);
		create table rows (file text, no int, text text)`)
	is.NoErr(err)
	h := runnertest.New(t, pool, runner.Options{}, register)
	is.NoErr(placeOrder(t.Context(), pool, h.Runner(), 7))
	is.True(placeOrder(t.Context(), pool, h.Runner(), 7) != nil) // the order already exists, so no second job is submitted
	file := h.Enqueue(Load{File: "a", Pages: 3})
	h.DieAt(runnertest.DuringCommit, "bill")
	h.RunUntilIdle()
	h.RequireState(file, runner.StateSucceeded)
	h.RequireState(h.RequireEnqueued(Send{Order: 7}).ID, runner.StateSucceeded)
	var cents, rows int
	is.NoErr(pool.QueryRow(t.Context(), `select (select sum(cents) from bills), (select count(*) from rows)`).Scan(&cents, &rows))
	is.Equal(cents, 700) // billed once, although the pod crashed
	is.Equal(rows, 6)
}
