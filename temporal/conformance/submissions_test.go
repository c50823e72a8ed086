package conformance

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// submissions are the cases about the ways to submit a job.
var submissions = []testCase{
	{name: "a repeated submission with an idempotency key returns the first job, even after its end", run: func(w *world) {
		var ran atomic.Int64
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { ran.Add(1); return nil, nil })
		w.start()
		first := w.enqueue(of("a"), runner.IdempotencyKey("k"))
		for range 3 {
			made, err := w.r.Enqueue(w.Context(), of("a"), runner.IdempotencyKey("k"))
			w.NoErr(err)
			w.True(made.Duplicate && made.ID == first)
			w.Equal(w.ended(first).State, job.Succeeded)
		}
		_, err := w.r.Enqueue(w.Context(), of("a", "2"), runner.IdempotencyKey("k"))
		w.True(errors.Is(err, job.ErrKeyReused))
		w.Equal(ran.Load(), int64(1))
	}},
	{name: "a unique key is held while its job is active", run: func(w *world) {
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { <-hold; return nil, nil })
		w.start()
		first := w.enqueue(of("a"), runner.Unique("k", runner.WhileActive))
		w.inState(first, job.Running)
		w.Equal(w.enqueue(of("a"), runner.Unique("k", runner.WhileActive)), first)
		open()
		w.ended(first)
		second := w.enqueue(of("a"), runner.Unique("k", runner.WhileActive))
		w.True(second != first)
		w.Equal(w.ended(second).State, job.Succeeded)
	}},
	{name: "a unique key is free once its job has started, if it is held only while pending", run: func(w *world) {
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { <-hold; return nil, nil })
		w.start()
		first := w.enqueue(of("a"), runner.Unique("k", runner.WhilePending), runner.Delay(300*time.Millisecond))
		w.Equal(w.enqueue(of("a"), runner.Unique("k", runner.WhilePending)), first)
		w.inState(first, job.Running)
		second := w.enqueue(of("a"), runner.Unique("k", runner.WhilePending))
		w.True(second != first)
		open()
		w.Equal(w.ended(first).State, job.Succeeded)
		w.Equal(w.ended(second).State, job.Succeeded)
	}},
	{name: "a job submitted in a transaction exists if and only if the transaction commits", run: func(w *world) {
		pgtest.Exec(w, w.pool, `create table orders (id bigint primary key)`)
		var ran trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) { ran.add("%s", j.Args.JSON); return nil, nil })
		w.start()
		submit := func(args string, then error) (id int64) {
			err := w.r.Tx(w.Context(), func(tx pgx.Tx) error {
				made, err := w.r.EnqueueTx(w.Context(), tx, of("a", args))
				if err == nil {
					_, err = tx.Exec(w.Context(), `insert into orders values ($1)`, made.ID)
				}
				id = made.ID
				return errors.Join(err, then)
			})
			w.True(errors.Is(err, then) || err == nil)
			return id
		}
		rolledBack := submit("1", errors.New("no"))
		committed := submit("2", nil)
		w.Equal(w.ended(committed).State, job.Succeeded)
		_, err := w.r.GetJob(w.Context(), rolledBack)
		w.True(errors.Is(err, job.ErrNotFound))
		w.Equal(pgtest.Column[int64](w, w.pool, `select id from orders`), []int64{committed})
		w.Equal(ran.String(), "2")
	}},
	{name: "each of many submissions ends once", run: func(w *world) {
		var ran atomic.Int64
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { ran.Add(1); return nil, nil })
		w.start()
		ids, err := w.r.EnqueueMany(w.Context(), children("a", 300))
		w.NoErr(err)
		w.wait("all jobs have ended", func() bool {
			return pgtest.QueryOne[int](w, w.pool, `select count(*) from trapeze.done where state = 'succeeded'`) == len(ids)
		})
		w.Equal(ran.Load(), int64(300))
	}},
	{name: "the jobs of a schedule run", run: func(w *world) {
		w.handle("a", number)
		w.start()
		every, kind := "@every 1s", "a"
		_, err := w.r.Admin("ana").SetSchedule(w.Context(), "often", job.ScheduleChange{Expression: &every, Kind: &kind})
		w.NoErr(err)
		w.wait("two occurrences have succeeded", func() bool {
			return pgtest.QueryOne[int](w, w.pool, `select count(*) from trapeze.done where state = 'succeeded'`) >= 2
		})
		w.NoErr(w.r.Admin("ana").DeleteSchedule(w.Context(), "often"))
		for _, id := range w.ids("a") {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
	}},
	{name: "arguments of a mebibyte reach the handler", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) { return runner.Done(len(j.Args.JSON)), nil })
		w.start()
		j := w.ended(w.enqueue(of("a", `"`+strings.Repeat("x", 1<<20-2)+`"`)))
		w.Equal(j.State, job.Succeeded)
		w.Equal(string(j.Result), "1048576")
	}},
}
