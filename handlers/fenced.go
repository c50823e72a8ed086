package handlers

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// guardSQL locks a job's guard row, and raises it to the fence of the caller's run. It affects no row if a later run of the job has already
// written.
const guardSQL = `
insert into co2.fences as f (job, fence) values ($1, $2)
on conflict (job) do update set fence = excluded.fence where f.fence <= excluded.fence`

// claimed is the part of [runner.Job] that writing needs.
type claimed interface {
	ID() int64
	Fence() int64
	Tx(ctx context.Context, write func(tx pgx.Tx) error, checkpoint any) error
	Checkpoint(ctx context.Context, v any) error
}

// write runs a handler's writes in a transaction and stores the checkpoint, if any, in the same commit or, with Options.Fenced, after it.
// The writes can be repeated, so a crash between the two commits does no harm.
func (p *pipeline) write(ctx context.Context, j claimed, write func(tx pgx.Tx) error, checkpoint any) error {
	if !p.Fenced {
		return j.Tx(ctx, write, checkpoint)
	}
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		guarded, err := tx.Exec(ctx, p.in(guardSQL), j.ID(), j.Fence())
		if err == nil && guarded.RowsAffected() == 0 {
			err = runner.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		return write(tx)
	})
	if err != nil || checkpoint == nil {
		return err
	}
	return j.Checkpoint(ctx, checkpoint)
}

// finish runs a handler's final writes: in the commit that ends the job or, with Options.Fenced, before the handler returns.
func (p *pipeline) finish(ctx context.Context, j claimed, o *runner.Outcome, write func(ctx context.Context, tx pgx.Tx) error) (*runner.Outcome, error) {
	if !p.Fenced {
		return o.InTx(write), nil
	}
	return o, p.write(ctx, j, func(tx pgx.Tx) error { return write(ctx, tx) }, nil)
}
