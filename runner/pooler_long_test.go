//go:build long

package runner_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestAllFeaturesBehindTransactionPooler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	through, direct := pooled(t)
	exec(t, direct, `create table seen (n int)`)
	var tries atomic.Int64
	hangs, release := latch(t)
	r := start(t, through, runner.Options{DirectURL: "off", PollInterval: time.Second, Slots: 16}, map[string]handler{
		"ingest": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			err := j.Tx(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into seen values (1)`)
				return err
			}, map[string]int{"row": 1})
			if err != nil {
				return nil, err
			}
			j.Progress(1, 2)
			return runner.Then(rawArgs("total", `{"n": 12345678901234567890}`)).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into seen values (2)`)
				return err
			}), nil
		},
		"total": succeed,
		"writes": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("total")).Write(`insert into seen values ($1)`, 10), nil
		},
		"flaky": func(context.Context, *raw) (*runner.Outcome, error) {
			if tries.Add(1) == 1 {
				return nil, job.RetryAfter(time.Millisecond, errors.New("once more"))
			}
			return nil, nil
		},
		"hangs": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-hangs:
			case <-ctx.Done():
			}
			return nil, context.Cause(ctx)
		},
	})
	first := enqueue(t, r, rawArgs("ingest"), runner.Subject("s"))
	flaky := enqueue(t, r, rawArgs("flaky"))
	delayed := enqueue(t, r, rawArgs("total"), runner.Delay(50*time.Millisecond))
	hanging := enqueueStarted(t, r, rawArgs("hangs"))
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		if _, err := r.EnqueueManyTx(t.Context(), tx, many("total", 300)); err != nil {
			return err
		}
		_, err := r.EnqueueTx(t.Context(), tx, rawArgs("total"), runner.IdempotencyKey("k"))
		return err
	}))
	var many []job.Args
	for range 3000 {
		many = append(many, rawArgs("total"))
	}
	for range 20 {
		many = append(many, rawArgs("writes"))
	}
	_, err := r.EnqueueMany(t.Context(), many)
	is.NoErr(err)

	for _, id := range []int64{first, flaky, delayed} {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	_, err = r.Admin("me").Cancel(t.Context(), hanging)
	is.NoErr(err)
	is.Equal(waitEnded(t, r, hanging).State, job.Cancelled) // the pod cannot listen, so it learns of the cancellation from its heartbeat
	release()
	quiet(t, direct)
	is.Equal(queryOne[int](t, direct, `select sum(n)::int from seen`), 3+20*10)
	is.Equal(queryOne[int](t, direct, `select count(*)::int from trapeze.done where state = 'succeeded'`), 3300+40+5)
	ready, why := r.Ready()
	is.True(ready) // the pod is ready even without LISTEN
	is.Equal(len(why), 0)
}
