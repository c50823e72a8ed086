package faults

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// spin keeps a CPU busy and ignores its context.
type spin struct{ Millis int }

// hoard acquires a connection from the host's pool and holds it while it runs.
type hoard struct{ Millis int }

func (spin) Kind() string  { return "spin" }
func (hoard) Kind() string { return "hoard" }

func registerStress(r *runner.Runner, pool *pgxpool.Pool) {
	runner.Handle(r, func(ctx context.Context, j *runner.Job[spin]) (*runner.Outcome, error) {
		for end := time.Now().Add(time.Duration(j.Args.Millis) * time.Millisecond); time.Now().Before(end); {
		}
		return nil, nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[hoard]) (*runner.Outcome, error) {
		held, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer held.Release()
		return nil, pause(ctx, j.Args.Millis)
	})
}
