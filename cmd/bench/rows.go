package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const writeRow = `insert into written (chain, step) values ($1, $2)`

// rows measures chains whose steps write to a user's table in the transaction that ends the step.
func (b *lab) rows(ctx context.Context) (line, error) {
	return b.writeRows(ctx, "InTx", func(o *runner.Outcome, s step) *runner.Outcome {
		return o.InTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, writeRow, s.Chain, s.Left)
			return err
		})
	})
}

// rowsQueued is like rows, but queues the statements with Outcome.Write, so that they share commits with other jobs.
func (b *lab) rowsQueued(ctx context.Context) (line, error) {
	return b.writeRows(ctx, "Write", func(o *runner.Outcome, s step) *runner.Outcome { return o.Write(writeRow, s.Chain, s.Left) })
}

func (b *lab) writeRows(ctx context.Context, how string, write func(*runner.Outcome, step) *runner.Outcome) (l line, err error) {
	const steps = 5
	n := b.size(2000)
	l = line{What: "2,000 chains of five steps submitted at once, each step writes one row to a user table with " + how + ", one pod with 100 slots",
		Goal: "every row once"}
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return l, err
	}
	defer g.close()
	if _, err := g.pool.Exec(ctx, `create table written (chain bigint not null, step int not null)`); err != nil {
		return l, err
	}
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		after := runner.Done(nil)
		if j.Args.Left > 0 {
			after = runner.Then(step{j.Args.Left - 1, j.Args.Chain})
		}
		return write(after, j.Args), nil
	})
	list := make([]job.Args, n)
	for i := range list {
		list[i] = step{steps - 1, int64(i)}
	}
	if err := g.tidy(ctx); err != nil {
		return l, err
	}
	g.start(ctx)
	e, err := g.measure(ctx, func() error {
		if _, err := g.r.EnqueueMany(ctx, list); err != nil {
			return err
		}
		return g.drained(ctx)
	})
	if err != nil {
		return l, err
	}
	if err := g.succeeded(ctx, n*steps); err != nil {
		return l, err
	}
	var all, different int
	err = g.pool.QueryRow(ctx, `select count(*), count(distinct (chain, step)) from written`).Scan(&all, &different)
	if err == nil && (all != n*steps || different != n*steps) {
		err = fmt.Errorf("%d rows, %d of them different, want %d", all, different, n*steps)
	}
	l.set("chains/s", float64(n)/e.seconds)
	l.set("steps/s", float64(n*steps)/e.seconds)
	l.set("writing transactions a step", e.xact/float64(n*steps))
	l.set("WAL bytes a step", e.wal/float64(n*steps))
	return l, err
}
