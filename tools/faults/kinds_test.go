package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// tablesSQL creates the tables in which handlers record what they do. They carry no unique constraints, because the check must be able to
// find duplicates. It also numbers events in the order in which they are written, which transaction IDs do not reveal.
const tablesSQL = `
create table effects (job bigint, fence bigint, step int, pipeline bigint);
create table batches (job bigint, fence bigint, n int, at timestamptz default clock_timestamp());
create table starts (job bigint, fence bigint, pod uuid, what text, at timestamptz default clock_timestamp());
alter table trapeze.job_events add column written bigserial`

const chainLength = 5

// link is a step of a chain built with Then. Each step makes an exactly-once write.
type link struct{ N, Of, Millis int }

// plain is a step of a declared chain. Its end shares a commit with the ends of other jobs.
type plain struct{ Millis int }

// batch writes rows in several transactions, each with a checkpoint.
type batch struct{ Rows, Millis int }

// turn is submitted with a subject, so that its runs do not overlap.
type turn struct{ Millis int }

// split fans out into branches with a join.
type split struct{}

const branches = 3

// flaky runs four times: it snoozes once, fails twice, and then succeeds.
type flaky struct{}

// nap waits. If Once is set, it waits only during its first claim. If IgnoreContext is set, it ignores the cancellation of its context.
type nap struct {
	Millis              int
	Once, IgnoreContext bool
}

// emitter emits an event every ten milliseconds and prints a line as soon as Emit has returned. It does so only during its first claim.
type emitter struct{}

func (emitter) Kind() string { return "emitter" }

// emittedPrefix is the prefix of the lines that an emitter prints. The rest of each line is the event's number and the time at which Emit
// returned, in nanoseconds.
const emittedPrefix = "told "

func (link) Kind() string  { return "link" }
func (plain) Kind() string { return "plain" }
func (batch) Kind() string { return "batch" }
func (turn) Kind() string  { return "turn" }
func (split) Kind() string { return "split" }
func (flaky) Kind() string { return "flaky" }
func (nap) Kind() string   { return "nap" }

// lengths is the number of steps in the pipelines of each kind.
var lengths = map[string]int{"link": chainLength, "plain": chainLength}

// writers lists the kinds that leave one row in effects per job.
var writers = []string{"link", "batch", "turn", "flaky"}

// register registers all kinds. Only flaky has a retry policy, because a database fault must never make a job fail.
func register(r *runner.Runner, pool *pgxpool.Pool) {
	runner.Handle(r, func(ctx context.Context, j *runner.Job[link]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		if err := pause(ctx, j.Args.Millis); err != nil {
			return nil, err
		}
		o := runner.Done(nil)
		if next := j.Args.N + 1; next < j.Args.Of {
			o = runner.Then(link{N: next, Of: j.Args.Of, Millis: j.Args.Millis})
		}
		return o.Result(j.Args.N).InTx(effect(j)), nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[plain]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		return runner.Done(j.Step()), pause(ctx, j.Args.Millis)
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[batch]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		first := 0
		if _, err := j.LastCheckpoint(&first); err != nil {
			return nil, err
		}
		for n := first; n < j.Args.Rows; n++ {
			err := j.Tx(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "insert into batches (job, fence, n) values ($1, $2, $3)", j.ID(), j.Fence(), n)
				return err
			}, n+1)
			if err != nil {
				return nil, err
			}
			if err := pause(ctx, j.Args.Millis); err != nil {
				return nil, err
			}
		}
		return runner.Done(j.Args.Rows).InTx(effect(j)), nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[turn]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		return runner.Done(nil).InTx(effect(j)), pause(ctx, j.Args.Millis)
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[split]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		return runner.FanOut(slices.Repeat([]job.Args{batch{Rows: 1}}, branches)...).Join(turn{}), nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[flaky]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		switch {
		case j.Fence() == 1:
			return runner.Snooze(20*time.Millisecond, "not now"), nil
		case j.Attempt() < 3:
			return nil, errors.New("not yet")
		}
		return runner.Done(nil).InTx(effect(j)), nil
	}, runner.Retry(3, runner.Backoff{Base: 20 * time.Millisecond}))
	runner.Handle(r, func(ctx context.Context, j *runner.Job[emitter]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		for n := 1; j.Fence() == 1; n++ {
			if err := j.Emit(ctx, "told", "", "", map[string]int{"n": n}); err != nil {
				return nil, err
			}
			fmt.Println(emittedPrefix+strconv.Itoa(n), time.Now().UnixNano())
			if err := pause(ctx, 10); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[nap]) (*runner.Outcome, error) {
		started(ctx, pool, j)
		waking := ctx
		if j.Args.IgnoreContext {
			waking = context.Background()
		}
		if j.Args.Once && j.Fence() > 1 {
			return nil, nil
		}
		if err := pause(waking, j.Args.Millis); err != nil {
			trace(context.WithoutCancel(ctx), pool, j, err.Error())
			return nil, err
		}
		return nil, nil
	})
}

// claim lists the job methods that are needed to record a trace.
type claim interface {
	ID() int64
	Fence() int64
	PodID() string
	Step() int
	PipelineID() int64
}

// effect returns a write that must happen exactly once.
func effect(j claim) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into effects values ($1, $2, $3, $4)", j.ID(), j.Fence(), j.Step(), j.PipelineID())
		return err
	}
}

// started records that a run began.
func started(ctx context.Context, pool *pgxpool.Pool, j claim) { trace(ctx, pool, j, "start") }

// trace adds a row to starts. On a slow machine, the insert can take seconds while many handlers are opening their first connections. If
// the database is down, trace gives up after ten seconds, so that the handler can continue.
func trace(ctx context.Context, pool *pgxpool.Pool, j claim, what string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, _ = pool.Exec(ctx, "insert into starts values ($1, $2, $3, $4)", j.ID(), j.Fence(), j.PodID(), what)
}

// pause waits for the given number of milliseconds. If ctx is cancelled first, it returns the cause.
func pause(ctx context.Context, millis int) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(time.Duration(millis) * time.Millisecond):
		return nil
	}
}
