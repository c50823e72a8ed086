package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const writeRow = `insert into written (chain, step) values ($1, $2)`

// chainSteps is the number of steps of each chain.
const chainSteps = 5

// chains measures many concurrent chains: without rows, and with steps that each write to a user's table in the transaction that ends the
// step (InTx) or with a statement that shares its commit with other jobs (Write).
func (b *lab) chains(ctx context.Context) (l line, err error) {
	n := b.size(2000)
	l = line{What: fmt.Sprintf("%d chains of %d steps submitted at once to a pod with 100 slots; without rows, and with a row of a user's table per step", n, chainSteps),
		Goal: "every row once; without rows at most 0.05 transactions a step"}
	for _, way := range []struct {
		name  string
		write func(*runner.Outcome, step) *runner.Outcome // nil for chains without rows
	}{
		{"no rows", nil},
		{"InTx", func(o *runner.Outcome, s step) *runner.Outcome {
			return o.InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, writeRow, s.Chain, s.Left)
				return err
			})
		}},
		{"Write", func(o *runner.Outcome, s step) *runner.Outcome { return o.Write(writeRow, s.Chain, s.Left) }},
	} {
		e, err := b.chainsOnce(ctx, n, way.write)
		if err != nil {
			return l, fmt.Errorf("%s: %w", way.name, err)
		}
		l.set(way.name+": chains/s", float64(n)/e.seconds)
		l.set(way.name+": writing transactions a step", e.xact/float64(n*chainSteps))
		l.set(way.name+": WAL bytes a step", e.wal/float64(n*chainSteps))
	}
	return l, nil
}

func (b *lab) chainsOnce(ctx context.Context, n int, write func(*runner.Outcome, step) *runner.Outcome) (e effort, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return e, err
	}
	defer g.close()
	if _, err := g.pool.Exec(ctx, `create table written (chain bigint not null, step int not null)`); err != nil {
		return e, err
	}
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		after := runner.Done(nil)
		if j.Args.Left > 0 {
			after = runner.Then(step{j.Args.Left - 1, j.Args.Chain})
		}
		if write != nil {
			after = write(after, j.Args)
		}
		return after, nil
	})
	list := make([]job.Args, n)
	for i := range list {
		list[i] = step{chainSteps - 1, int64(i)}
	}
	if err := g.tidy(ctx); err != nil {
		return e, err
	}
	g.start(ctx)
	e, err = g.measure(ctx, func() error {
		if _, err := g.r.EnqueueMany(ctx, list); err != nil {
			return err
		}
		return g.drained(ctx)
	})
	if err != nil {
		return e, err
	}
	if err := g.succeeded(ctx, n*chainSteps); err != nil || write == nil {
		return e, err
	}
	var all, different int
	err = g.pool.QueryRow(ctx, `select count(*), count(distinct (chain, step)) from written`).Scan(&all, &different)
	if err == nil && (all != n*chainSteps || different != n*chainSteps) {
		err = fmt.Errorf("%d rows, %d of them different, want %d", all, different, n*chainSteps)
	}
	return e, err
}
