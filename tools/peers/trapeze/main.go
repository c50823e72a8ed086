// Command trapeze is the adapter for Trapeze. It uses the public API with default options, except for the number of workers.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"peers/common"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

type step struct{ common.Payload }

func (step) Kind() string { return "noop" }

type peer struct {
	pool *pgxpool.Pool
	r    *runner.Runner
}

func (p *peer) Config() string { return "trapeze, default options, slots = workers" }

func (p *peer) Setup(ctx context.Context, url string) error {
	pool := common.Pool(ctx, url, 4)
	defer pool.Close()
	return migrate.Up(ctx, pool, runner.Options{})
}

func quiet() runner.Options {
	return runner.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func (p *peer) Open(ctx context.Context, url string) (err error) {
	p.pool = common.Pool(ctx, url, 4)
	p.r, err = runner.New(p.pool, quiet())
	return err
}

func (p *peer) Close() { p.r.Close(); p.pool.Close() }

func (p *peer) Bulk(ctx context.Context, ps []common.Payload) error {
	list := make([]runner.Args, len(ps))
	for i, x := range ps {
		list[i] = step{x}
	}
	if common.InTransaction() {
		return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
			_, err := p.r.EnqueueManyTx(ctx, tx, list, runner.AllowUnregistered())
			return err
		})
	}
	_, err := p.r.EnqueueMany(ctx, list, runner.AllowUnregistered())
	return err
}

func (p *peer) Enqueue(ctx context.Context, x common.Payload) error {
	_, err := p.r.Enqueue(ctx, step{x})
	return err
}

func (p *peer) Start(ctx context.Context, url string, workers int, h common.Handler) (func(), error) {
	conns := 4
	if common.WritesRows() { // in W4T, the steps use the host's pool, so its size is the same as River's
		conns = common.Env("CONNS", 20)
	}
	pool := common.Pool(ctx, url, int32(conns))
	o := quiet()
	o.Slots = workers
	r, err := runner.New(pool, o)
	if err != nil {
		return nil, err
	}
	runner.Handle(r, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		var after *runner.Outcome
		err := h(ctx, j.Args.Payload, func(next common.Payload) error {
			after = runner.Then(step{next})
			return nil
		})
		if common.WritesRows() {
			after = withRow(after, j.Args.Payload)
		}
		return after, err
	})
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	p.r, p.pool = r, pool
	return func() {
		stop()
		if err := <-ended; err != nil {
			fmt.Println("run:", err)
		}
		r.Close()
		pool.Close()
	}, nil
}

// withRow makes the outcome write the W4T step's row. Depending on WRITE, the row is written in a separate transaction or in a commit that
// several jobs share.
func withRow(after *runner.Outcome, x common.Payload) *runner.Outcome {
	if after == nil {
		after = runner.Done(nil)
	}
	if common.Env("WRITE", 0) == 1 {
		return after.Write(common.RowSQL, x.Chain, x.Step)
	}
	return after.InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, common.RowSQL, x.Chain, x.Step)
		return err
	})
}

func (p *peer) PendingSQL() string {
	return `select exists (select from trapeze.live) or exists (select from trapeze.parked)`
}

func main() { common.Main("trapeze", &peer{}) }
