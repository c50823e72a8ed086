// Command river is the adapter for github.com/riverqueue/river.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"peers/common"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type Args struct{ common.Payload }

func (Args) Kind() string { return "noop" }

type W struct {
	river.WorkerDefaults[Args]
	p *peer
	h common.Handler
}

func (w *W) Work(ctx context.Context, j *river.Job[Args]) error {
	if common.WritesRows() {
		return w.workWithRow(ctx, j)
	}
	return w.h(ctx, j.Args.Payload, func(n common.Payload) error {
		c := river.ClientFromContext[pgx.Tx](ctx)
		if w.p.tx { // one transaction inserts the next job and completes this one
			tx, err := w.p.wpool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			if _, err = c.InsertTx(ctx, tx, Args{n}, nil); err != nil {
				return err
			}
			if _, err = river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, j); err != nil {
				return err
			}
			return tx.Commit(ctx)
		}
		_, err := c.Insert(ctx, Args{n}, nil)
		return err
	})
}

// workWithRow runs a step of W4T. One transaction inserts its row, enqueues the next step and completes the job.
func (w *W) workWithRow(ctx context.Context, j *river.Job[Args]) error {
	var next *common.Payload
	err := w.h(ctx, j.Args.Payload, func(n common.Payload) error { next = &n; return nil })
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, w.p.wpool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, common.RowSQL, j.Args.Chain, j.Args.Step); err != nil {
			return err
		}
		if next != nil {
			if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, Args{*next}, nil); err != nil {
				return err
			}
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, j)
		return err
	})
}

type peer struct {
	pool, wpool *pgxpool.Pool
	c           *river.Client[pgx.Tx]
	tx          bool
}

func (p *peer) Config() string {
	return fmt.Sprintf("river v0.51.0 FetchCooldown=%dms FetchPollInterval=%dms pool=%d tx=%v", cool(), poll(), conns(), p.tx)
}
func cool() int  { return common.Env("RIVER_COOLDOWN", 2) }
func poll() int  { return common.Env("RIVER_POLL", 20) }
func conns() int { return common.Env("CONNS", 20) }

func (p *peer) Setup(ctx context.Context, url string) error {
	pool := common.Pool(ctx, url, 4)
	defer pool.Close()
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (p *peer) Open(ctx context.Context, url string) (err error) {
	p.pool = common.Pool(ctx, url, 4)
	p.c, err = river.NewClient(riverpgxv5.New(p.pool), &river.Config{Logger: quiet()})
	return
}
func (p *peer) Close() { p.pool.Close() }
func (p *peer) Bulk(ctx context.Context, ps []common.Payload) error {
	a := make([]river.InsertManyParams, len(ps))
	for i, x := range ps {
		a[i].Args = Args{x}
	}
	if common.InTransaction() {
		return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { _, err := p.c.InsertManyFastTx(ctx, tx, a); return err })
	}
	_, err := p.c.InsertManyFast(ctx, a)
	return err
}
func (p *peer) Enqueue(ctx context.Context, x common.Payload) error {
	_, err := p.c.Insert(ctx, Args{x}, nil)
	return err
}
func (p *peer) Start(ctx context.Context, url string, workers int, h common.Handler) (func(), error) {
	p.wpool = common.Pool(ctx, url, int32(conns()))
	ws := river.NewWorkers()
	river.AddWorker(ws, &W{p: p, h: h})
	c, err := river.NewClient(riverpgxv5.New(p.wpool), &river.Config{
		Logger: quiet(), Workers: ws, JobTimeout: -1,
		FetchCooldown: time.Duration(cool()) * time.Millisecond, FetchPollInterval: time.Duration(poll()) * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
	})
	if err != nil {
		return nil, err
	}
	p.c = c
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	return func() { c.Stop(ctx); p.wpool.Close() }, nil
}
func (p *peer) PendingSQL() string {
	return `select exists(select 1 from river_job where state='running') or exists(select 1 from river_job where state='available')`
}

func main() { common.Main(nm(), &peer{tx: os.Getenv("RIVER_TX") == "1"}) }
func nm() string {
	if os.Getenv("RIVER_TX") == "1" {
		return "river-tx"
	}
	return "river"
}
