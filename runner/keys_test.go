package runner_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// together calls do n times concurrently and returns the distinct ids.
func together(t *testing.T, n int, do func() (runner.Submitted, error)) []int64 {
	t.Helper()
	var (
		mu    sync.Mutex
		ids   []int64
		calls sync.WaitGroup
	)
	for range n {
		calls.Go(func() {
			s, err := do()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			ids = append(ids, s.ID)
		})
	}
	calls.Wait()
	slices.Sort(ids)
	return slices.Compact(ids)
}

func TestSubmissionsWithSameIdempotencyKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"a": succeed})
	ids := together(t, 200, func() (runner.Submitted, error) {
		return r.Enqueue(context.WithoutCancel(t.Context()), rawArgs("a", "1"), runner.IdempotencyKey("k"))
	})
	is.Equal(len(ids), 1)
	waitEnded(t, r, ids[0])
	s, err := r.Enqueue(t.Context(), rawArgs("a", "1"), runner.IdempotencyKey("k"))
	is.NoErr(err)
	is.True(s.ID == ids[0] && s.Duplicate) // the key is still held after the job has finished
	for _, other := range []func() (runner.Submitted, error){
		func() (runner.Submitted, error) {
			return r.Enqueue(t.Context(), runner.Chain(rawArgs("a", "1"), rawArgs("a", "2")), runner.IdempotencyKey("k"))
		},
		func() (runner.Submitted, error) {
			return r.Enqueue(t.Context(), rawArgs("a", "2"), runner.IdempotencyKey("k"))
		},
		func() (runner.Submitted, error) {
			return r.Enqueue(t.Context(), rawArgs("a", "1"), runner.IdempotencyKey("k"), runner.Subject("s"))
		},
		func() (runner.Submitted, error) {
			return r.Enqueue(t.Context(), rawArgs("a", "1"), runner.IdempotencyKey("k"), runner.Key("t"))
		},
	} {
		_, err = other()
		is.True(errors.Is(err, job.ErrKeyReused)) // the same key with different content is an error
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 1)
}

func TestUniqueKeyPendingOrActive(t *testing.T) {
	t.Parallel()
	for _, while := range []runner.UniqueWhile{runner.WhilePending, runner.WhileActive} {
		t.Run(string(while), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			wait, open := latch(t)
			runs := map[string]handler{"a": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil }}
			r := newRunner(t, pool, runner.Options{}, runs)
			submit := func() (runner.Submitted, error) {
				return r.Enqueue(context.WithoutCancel(t.Context()), rawArgs("a"), runner.Unique("k", while))
			}
			ids := together(t, 50, submit)
			is.Equal(len(ids), 1) // all calls return the same job while it is pending
			run(t, r)
			inState(t, r, ids[0], job.Running)
			next, err := submit()
			is.NoErr(err)
			is.Equal(next.ID == ids[0], while == runner.WhileActive) // a running job holds the key only with WhileActive
			open()
			waitEnded(t, r, ids[0])
			waitEnded(t, r, next.ID)
			last, err := submit()
			is.NoErr(err)
			is.True(last.ID != ids[0] && last.ID != next.ID) // a finished job no longer holds the key
		})
	}
}

func TestSubmissionInTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table orders (id bigint)`)
	r := start(t, pool, runner.Options{PollInterval: time.Hour}, map[string]handler{"a": succeed})
	var made runner.Submitted
	submit := func(tx pgx.Tx) (err error) {
		if made, err = r.EnqueueTx(t.Context(), tx, rawArgs("a")); err == nil {
			_, err = tx.Exec(t.Context(), `insert into orders values ($1)`, made.ID)
		}
		return err
	}
	no := errors.New("no")
	is.True(errors.Is(r.Tx(t.Context(), func(tx pgx.Tx) error { return errors.Join(submit(tx), no) }), no))
	_, err := r.GetJob(t.Context(), made.ID)
	is.True(errors.Is(err, job.ErrNotFound)) // the submission was rolled back
	is.NoErr(r.Tx(t.Context(), submit))
	is.Equal(waitEnded(t, r, made.ID).State, job.Succeeded) // the commit woke the pod: its next poll is an hour away
	is.NoErr(pgx.BeginFunc(t.Context(), pool, submit))
	is.Equal(waitEnded(t, r, made.ID).State, job.Succeeded) // a transaction without Tx wakes the pod with a notification
	is.Equal(queryOne[int](t, pool, `select count(*) from orders`), 2)
}

func TestSubmissionResultInsideTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"a": succeed})
	first, err := r.Enqueue(t.Context(), rawArgs("a"), runner.Unique("k", runner.WhileActive))
	is.NoErr(err)
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		again, err := r.EnqueueTx(t.Context(), tx, rawArgs("a"), runner.Unique("k", runner.WhileActive))
		is.Equal(again, runner.Submitted{ID: first.ID, PipelineID: first.ID, State: job.Pending, Duplicate: true})
		if err != nil {
			return err
		}
		other, err := r.EnqueueTx(t.Context(), tx, rawArgs("a"), runner.NeedsApproval(), runner.IdempotencyKey("mine"))
		is.Equal(other, runner.Submitted{ID: other.ID, PipelineID: other.ID, State: job.AwaitingApproval})
		if err != nil {
			return err
		}
		again, err = r.EnqueueTx(t.Context(), tx, rawArgs("a"), runner.NeedsApproval(), runner.IdempotencyKey("mine"))
		is.True(again.ID == other.ID && again.Duplicate) // the first submission is in the same transaction
		return err
	}))
	run(t, r)
	chain := enqueue(t, r, runner.Chain(rawArgs("a"), rawArgs("a")), runner.IdempotencyKey("k"))
	waitEnded(t, r, chain)
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		again, err := r.EnqueueTx(t.Context(), tx, runner.Chain(rawArgs("a"), rawArgs("a")), runner.IdempotencyKey("k"))
		is.Equal(again, runner.Submitted{ID: chain, PipelineID: chain, State: job.Succeeded, Duplicate: true})
		return err
	}))
}

func TestEnqueueManyOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var runs atomic.Int64
	r := start(t, pool, runner.Options{Slots: 20}, map[string]handler{"a": func(context.Context, *raw) (*runner.Outcome, error) { runs.Add(1); return nil, nil }})
	list := make([]job.Args, 5000)
	for i := range list {
		list[i] = rawArgs("a")
	}
	ids, err := r.EnqueueMany(t.Context(), list)
	is.NoErr(err)
	is.Equal(len(ids), 5000)
	is.True(slices.IsSorted(ids))
	pgtest.WaitFor(t, time.Minute, "all have ended", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`) == 5000
	})
	is.Equal(runs.Load(), int64(5000)) // even a job that was claimed ahead of time and then claimed again runs once
}

func TestWakeUpAfterPartialSubmission(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{PollInterval: time.Hour}, map[string]handler{"a": succeed})
	ids, err := r.EnqueueMany(t.Context(), append(many("a", 2000), rawArgs("a", `"`+strings.Repeat("x", job.MaxArgsBytes)+`"`)))
	is.True(errors.Is(err, job.ErrTooLarge))
	is.Equal(len(ids), 2000) // the jobs of the first commit
	pgtest.WaitFor(t, time.Minute, "all have ended", func() bool { return queryOne[int](t, pool, `select count(*) from trapeze.live`) == 0 })
}

func TestInvalidSubmissionInput(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"a": succeed})
	long := strings.Repeat("x", 600)
	for name, c := range map[string]struct {
		args    job.Args
		options []runner.EnqueueOption
		want    error
	}{
		"no args":                {nil, nil, job.ErrInvalidArgs},
		"an empty chain":         {runner.Chain(nil), nil, job.ErrInvalidArgs},
		"an empty step":          {runner.With(nil), nil, job.ErrInvalidArgs},
		"an empty later step":    {runner.Chain(rawArgs("a"), nil), nil, job.ErrInvalidArgs},
		"broken JSON":            {rawArgs("a", `{"a":`), nil, job.ErrInvalidArgs},
		"a NUL":                  {rawArgs("a", `{"a":["\u0000"]}`), nil, job.ErrInvalidArgs},
		"invalid UTF-8":          {rawArgs("a", "\"\xff\xfe\""), nil, job.ErrInvalidArgs},
		"too large":              {rawArgs("a", `"`+strings.Repeat("x", job.MaxArgsBytes)+`"`), nil, job.ErrTooLarge},
		"an unknown kind":        {rawArgs("b"), nil, job.ErrUnknownKind},
		"an unknown later kind":  {runner.Chain(rawArgs("a"), rawArgs("b")), nil, job.ErrUnknownKind},
		"no kind":                {rawArgs(""), []runner.EnqueueOption{runner.AllowUnregistered()}, job.ErrInvalid},
		"a long kind":            {rawArgs(long), []runner.EnqueueOption{runner.AllowUnregistered()}, job.ErrInvalid},
		"an unknown lane":        {rawArgs("a"), []runner.EnqueueOption{runner.Lane("nowhere")}, job.ErrUnknownLane},
		"an unknown later lane":  {runner.Chain(rawArgs("a"), runner.With(rawArgs("a"), runner.Lane("nowhere"))), nil, job.ErrUnknownLane},
		"a priority too high":    {rawArgs("a"), []runner.EnqueueOption{runner.Priority(101)}, job.ErrInvalid},
		"a priority too low":     {rawArgs("a"), []runner.EnqueueOption{runner.Priority(-101)}, job.ErrInvalid},
		"a long subject":         {rawArgs("a"), []runner.EnqueueOption{runner.Subject(long)}, job.ErrInvalid},
		"a subject with a NUL":   {rawArgs("a"), []runner.EnqueueOption{runner.Subject("a\x00b")}, job.ErrInvalid},
		"a subject that is none": {rawArgs("a"), []runner.EnqueueOption{runner.Subject("\xff")}, job.ErrInvalid},
		"an empty unique key":    {rawArgs("a"), []runner.EnqueueOption{runner.Unique("", runner.WhileActive)}, job.ErrInvalid},
		"no attempts":            {rawArgs("a"), []runner.EnqueueOption{runner.MaxAttempts(0)}, job.ErrInvalid},
		"another's later step":   {runner.Chain(rawArgs("a"), runner.With(rawArgs("a"), runner.Submitter("eve"))), nil, job.ErrInvalid},
		"keys on a later step":   {runner.Chain(rawArgs("a"), runner.With(rawArgs("a"), runner.IdempotencyKey("k"))), nil, job.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := r.Enqueue(t.Context(), c.args, c.options...)
			is.True(errors.Is(err, c.want)) // the documented error
			err = r.Tx(t.Context(), func(tx pgx.Tx) error {
				_, err := r.EnqueueTx(t.Context(), tx, c.args, c.options...)
				return err
			})
			is.True(errors.Is(err, c.want)) // the same in a transaction
			_, err = r.EnqueueMany(t.Context(), []job.Args{rawArgs("a"), c.args}, c.options...)
			is.True(err != nil) // and in EnqueueMany
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 0)
		})
	}
	is := is.New(t)
	id := enqueue(t, r, rawArgs("a", `{"path": "C:\\u0000"}`))
	is.Equal(string(get(t, r, id).Args), `{"path":"C:\\u0000"}`) // an escaped backslash is not a NUL
}
