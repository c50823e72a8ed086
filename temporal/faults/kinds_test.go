package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// ledgerSQL creates the tables in which handlers record their calls. Each row in starts is a handler call. Each row in effects is an
// idempotent write that only the run with the highest fence may make.
const (
	ledgerSQL = `
create table starts (job bigint not null, fence bigint not null, pod text not null, at timestamptz not null default clock_timestamp());
create table effects (job bigint primary key, fence bigint not null, n bigint not null)`

	effectSQL = `
insert into effects as e (job, fence, n) values ($1, $2, $3)
on conflict (job) do update set fence = excluded.fence, n = excluded.n where e.fence <= excluded.fence`
)

// work takes the given number of milliseconds and then writes its effect. Its result is N.
type work struct{ N, Millis int }

func (work) Kind() string { return "work" }

// flaky is like work, but its first attempt fails.
type flaky struct{ N int }

func (flaky) Kind() string { return "flaky" }

// link is one of Of steps, each of which requests the next step.
type link struct{ No, Of, Millis int }

func (link) Kind() string { return "link" }

// split fans out into work jobs numbered from 1 to Of. The join checks their sum.
type split struct{ Of, Millis int }

func (split) Kind() string { return "split" }

type total struct{ Of int }

func (total) Kind() string { return "total" }

// register registers the kinds that these tests use.
func register(r *runner.Runner, pool *pgxpool.Pool) {
	runner.Handle(r, func(ctx context.Context, j *runner.Job[work]) (*runner.Outcome, error) {
		return runner.Done(j.Args.N), act(ctx, pool, j, j.Args.N, j.Args.Millis)
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[flaky]) (*runner.Outcome, error) {
		err := act(ctx, pool, j, j.Args.N, 1)
		if j.Attempt() == 1 {
			err = errors.Join(err, errors.New("once"))
		}
		return nil, err
	}, runner.Retry(2, runner.Backoff{Base: 10 * time.Millisecond}))
	runner.Handle(r, func(ctx context.Context, j *runner.Job[link]) (*runner.Outcome, error) {
		a := j.Args
		err := act(ctx, pool, j, a.No, a.Millis)
		if a.No == a.Of {
			return nil, err
		}
		return runner.Then(link{a.No + 1, a.Of, a.Millis}), err
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[split]) (*runner.Outcome, error) {
		var list []runner.Args
		for n := range j.Args.Of {
			list = append(list, work{n + 1, j.Args.Millis})
		}
		return runner.FanOut(list...).Join(total{j.Args.Of}), act(ctx, pool, j, 0, 1)
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[total]) (*runner.Outcome, error) {
		sum := 0
		for b, err := range j.Branches(ctx) {
			var n int
			if err = errors.Join(err, b.Result(&n)); err != nil {
				return nil, err
			}
			sum += n
		}
		if want := j.Args.Of * (j.Args.Of + 1) / 2; sum != want {
			return nil, job.Permanent(fmt.Errorf("the total is %d, want %d", sum, want))
		}
		return runner.Done(sum), act(ctx, pool, j, sum, 1)
	})
}

type claimed interface {
	ID() int64
	Fence() int64
	PodName() string
}

// act records a run's start, waits, and writes the run's effect.
func act(ctx context.Context, pool *pgxpool.Pool, j claimed, n, millis int) error {
	if _, err := pool.Exec(ctx, `insert into starts (job, fence, pod) values ($1, $2, $3)`, j.ID(), j.Fence(), j.PodName()); err != nil {
		return job.Retryable(err)
	}
	timer := time.NewTimer(time.Duration(millis) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	wrote, err := pool.Exec(ctx, effectSQL, j.ID(), j.Fence(), n)
	if err == nil && wrote.RowsAffected() == 0 {
		err = job.ErrLeaseLost
	}
	return err
}
