package runner_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// ends records the calls to a hook.
type ends struct {
	mu   sync.Mutex
	list []job.End
}

func (e *ends) add(_ context.Context, end job.End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, end)
}

// rawArgs returns the calls recorded for a job so far.
func (e *ends) of(id int64) (list []job.End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.list {
		if end.ID == id {
			list = append(list, end)
		}
	}
	return list
}

// wait waits until the end of a job has been recorded and returns it.
func (e *ends) wait(t *testing.T, id int64) job.End {
	t.Helper()
	pgtest.Wait(t, "the end is reported", func() bool { return len(e.of(id)) > 0 })
	return e.of(id)[0]
}

// check waits until the hook has been called once for each finished job in the database, and then compares the calls with the stored rows.
func (e *ends) check(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select d.id, j.pipeline_id, j.kind, d.lane, j.subject, coalesce(j.key, ''), d.attempt, d.state, d.reason, coalesce(d.error, '') as error,
		coalesce(d.error_class, '') as error_class, coalesce(d.error_code, '') as error_code, '' as stack
		from trapeze.done d join trapeze.jobs j on j.id = d.id order by d.id`)
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job.End])
	if err != nil {
		t.Fatal(err)
	}
	var told []job.End
	pgtest.Wait(t, "every end is reported", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		told = slices.Clone(e.list)
		return len(told) >= len(want)
	})
	slices.SortFunc(told, func(a, b job.End) int { return cmp.Compare(a.ID, b.ID) })
	for i, end := range told {
		if end.Stack != "" { // the database stores error and stack as one text
			end.Error, end.Stack = end.Error+"\n"+end.Stack, ""
		}
		if i >= len(want) || end != want[i] {
			t.Fatalf("reported:\n%+v\nin the database:\n%+v", told, want)
		}
	}
}

func TestEndHookByFailureCause(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create unique index on trapeze.jobs ((args ->> 'once')) where kind = 'taken'`)
	open, free := latch(t)
	fails := func(err error) handler {
		return func(context.Context, *raw) (*runner.Outcome, error) { return nil, err }
	}
	writes := func(write func(context.Context, pgx.Tx) error) handler {
		return func(context.Context, *raw) (*runner.Outcome, error) { return runner.Done(nil).InTx(write), nil }
	}
	handlers := map[string]handler{
		"taken": succeed,
		"waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() },
		"deaf":  func(context.Context, *raw) (*runner.Outcome, error) { <-open; return nil, nil },
	}
	ways := map[string]struct {
		run     handler // if nil, the entry in handlers is used
		reason  job.Reason
		class   job.ErrorClass
		attempt int
		error   string // the start of the error
		stack   string // a substring of the stack
	}{
		"permanent": {fails(job.Permanent(job.Code("declined", errors.New("no card")))), job.ReasonError, job.ClassError, 1, "no card", ""},
		"exhausted": {fails(errors.New("no luck")), job.ReasonAttemptsExhausted, job.ClassError, 2, "no luck", ""},
		"panics": {func(context.Context, *raw) (*runner.Outcome, error) { panic("lost my head") }, job.ReasonAttemptsExhausted, job.ClassPanic, 2,
			"panic: lost my head", "on_end_test.go"},
		"tx_fails": {writes(func(context.Context, pgx.Tx) error { return errors.New("no row") }), job.ReasonAttemptsExhausted, job.ClassError, 2, "no row", ""},
		"tx_panics": {writes(func(context.Context, pgx.Tx) error { panic("in the middle") }), job.ReasonAttemptsExhausted, job.ClassPanic, 2,
			"in InTx or Write: panic: in the middle", "on_end_test.go"},
		"sql": {writes(func(ctx context.Context, tx pgx.Tx) error {
			return func() error { _, err := tx.Exec(ctx, `select 1 / 0`); return err }()
		}), job.ReasonAttemptsExhausted, job.ClassDatabase, 2, "ERROR", ""},
		"args": {fails(job.ErrInvalidArgs), job.ReasonInvalidArgs, job.ClassInvalidArgs, 2, "invalid args", ""},
		"refused": {func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("taken", `{"once":"x"}`)), nil
		}, job.ReasonUnstorable, job.ClassUnstorable, 1, "could not store the handler's outcome", ""},
		"large": {func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(strings.Repeat("x", 2<<20)), nil
		}, job.ReasonResultTooLarge,
			job.ClassUnstorable, 1, "too large", ""},
		"fans": {func(context.Context, *raw) (*runner.Outcome, error) { return runner.FanOut(rawArgs("permanent")), nil }, job.ReasonChildrenFailed,
			job.ClassChildrenFailed, 1, "1 of 1 children failed", ""},
		"join_refused": {func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("taken", `{"once":"y"}`)).Join(rawArgs("taken", `{"once":"x"}`)), nil
		}, job.ReasonUnstorable, job.ClassUnstorable, 1, "could not store the next step", ""},
		"waits": {nil, job.ReasonTimeout, job.ClassTimeout, 2, "context deadline exceeded", ""},
		"deaf":  {nil, job.ReasonTimeout, job.ClassTimeout, 2, "handler ignored its cancelled context", ""},
	}
	for kind, way := range ways {
		if way.run != nil {
			handlers[kind] = way.run
		}
	}
	var told ends
	r := newRunner(t, pool, runner.Options{OnEnd: told.add, Slots: 50, StuckAfter: 50 * time.Millisecond}, nil)
	for kind, handler := range handlers {
		options := []runner.HandleOption{runner.Retry(2, soon)}
		if ways[kind].reason == job.ReasonTimeout {
			options = append(options, runner.Timeout(100*time.Millisecond))
		}
		runner.HandleRaw(r, kind, handler, options...)
	}
	run(t, r)
	waitEnded(t, r, enqueue(t, r, rawArgs("taken", `{"once":"x"}`)))
	t.Run("ways", func(t *testing.T) {
		for kind, way := range ways {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				id := enqueue(t, r, rawArgs(kind), runner.Subject("about "+kind))
				e := told.wait(t, id)
				is.Equal(get(t, r, id).State, job.Failed) // the end had been committed before the hook was called
				is.Equal([]any{e.PipelineID, e.Kind, e.Lane, e.Subject, e.State}, []any{id, kind, "default", "about " + kind, job.Failed})
				is.Equal(e.Reason, way.reason)
				is.Equal(e.ErrorClass, way.class)
				is.Equal(e.Attempt, way.attempt)
				is.True(strings.Contains(e.Error, way.error))
				is.Equal(strings.Contains(e.Error, "goroutine"), false) // the error does not contain the stack
				is.Equal(e.Stack != "", way.stack != "")                // only a panic has a stack
				is.True(strings.Contains(e.Stack, way.stack))           // the stack shows where the panic occurred
				is.Equal(e.ErrorCode, map[string]string{"permanent": "declined", "sql": "22012"}[kind])
			})
		}
	})
	free()
	pgtest.Wait(t, "the deaf handlers return", func() bool { return r.Running() == 0 })
	told.check(t, pool)
}

// Each failed attempt is reported to exactly one of the two hooks. Middleware does not see all of these failures.
func TestRetryHookPerFailedAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	open, free := latch(t)
	handlers := map[string]handler{
		"errs": func(context.Context, *raw) (*runner.Outcome, error) {
			return nil, job.Code("declined", errors.New("no card"))
		},
		"panics": func(context.Context, *raw) (*runner.Outcome, error) { panic("lost my head") },
		"in_tx": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(context.Context, pgx.Tx) error { return errors.New("no row") }), nil
		},
		"queued": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).Write(`select 1 / 0`), nil
		},
		"waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() },
		"deaf":  func(context.Context, *raw) (*runner.Outcome, error) { <-open; return nil, nil },
		"snoozes": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Snoozes() == 0 {
				return runner.Snooze(time.Millisecond, "not yet"), nil
			}
			return nil, nil
		},
	}
	type seen struct {
		state   job.State
		reason  job.Reason
		class   job.ErrorClass
		code    string
		attempt int
		stack   bool
	}
	exhausted := job.ReasonAttemptsExhausted
	var told, tries ends
	r := newRunner(t, pool, runner.Options{OnEnd: told.add, OnRetry: tries.add, Slots: 50, StuckAfter: 50 * time.Millisecond}, nil)
	for kind, handler := range handlers {
		options := []runner.HandleOption{runner.Retry(2, soon)}
		switch kind {
		case "waits":
			options = append(options, runner.InactivityTimeout(50*time.Millisecond))
		case "deaf":
			options = append(options, runner.Timeout(50*time.Millisecond))
		}
		runner.HandleRaw(r, kind, handler, options...)
	}
	run(t, r)
	for kind, want := range map[string][]seen{
		"errs":    {{job.Pending, job.ReasonError, job.ClassError, "declined", 1, false}, {job.Failed, exhausted, job.ClassError, "declined", 2, false}},
		"panics":  {{job.Pending, job.ReasonError, job.ClassPanic, "", 1, true}, {job.Failed, exhausted, job.ClassPanic, "", 2, true}},
		"in_tx":   {{job.Pending, job.ReasonError, job.ClassError, "", 1, false}, {job.Failed, exhausted, job.ClassError, "", 2, false}},
		"queued":  {{job.Pending, job.ReasonError, job.ClassDatabase, "22012", 1, false}, {job.Failed, exhausted, job.ClassDatabase, "22012", 2, false}},
		"waits":   {{job.Pending, job.ReasonInactive, job.ClassInactive, "", 1, false}, {job.Failed, job.ReasonInactive, job.ClassInactive, "", 2, false}},
		"deaf":    {{job.Pending, job.ReasonTimeout, job.ClassTimeout, "", 1, false}, {job.Failed, job.ReasonTimeout, job.ClassTimeout, "", 2, false}},
		"snoozes": {{job.Succeeded, job.ReasonOK, "", "", 1, false}},
	} {
		t.Run(kind, func(t *testing.T) {
			is := is.New(t)
			id := enqueue(t, r, rawArgs(kind))
			var got []seen
			pgtest.Wait(t, "the attempts and the end are reported", func() bool { return len(tries.of(id))+len(told.of(id)) >= len(want) })
			for _, e := range append(tries.of(id), told.of(id)...) {
				got = append(got, seen{e.State, e.Reason, e.ErrorClass, e.ErrorCode, e.Attempt, e.Stack != ""})
			}
			is.Equal(got, want)
		})
	}
	free()
	pgtest.Wait(t, "the deaf handlers return", func() bool { return r.Running() == 0 })
	told.check(t, pool)
}

func TestEndHookStaleOverdueRuns(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var told ends
	r := newRunner(t, pool, runner.Options{OnEnd: told.add, MaxAge: time.Hour}, nil)
	untilDone := func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		return nil, errors.New("late")
	}
	runner.HandleRaw(r, "still", untilDone, runner.InactivityTimeout(50*time.Millisecond))
	runner.HandleRaw(r, "old", untilDone)
	run(t, r)
	e := told.wait(t, enqueue(t, r, rawArgs("still")))
	is.Equal([]any{e.State, e.Reason, e.ErrorClass, e.Attempt}, []any{job.Failed, job.ReasonInactive, job.ClassInactive, 1})
	running := enqueueStarted(t, r, rawArgs("old"))
	waiting := enqueue(t, r, rawArgs("elsewhere"), runner.AllowUnregistered())
	exec(t, pool, `update trapeze.live set ready_at = now() - interval '2 hours'`)
	is.NoErr(r.Maintain(t.Context()))
	e = told.wait(t, running)
	is.Equal([]any{e.State, e.Reason, e.ErrorClass, e.Attempt}, []any{job.Failed, job.ReasonDeadline, job.ClassDeadline, 1})
	e = told.wait(t, waiting)
	is.Equal([]any{e.State, e.Reason, e.ErrorClass, e.Attempt}, []any{job.Failed, job.ReasonDeadline, job.ClassDeadline, 0})
	pgtest.Wait(t, "the handler returns", func() bool { return r.Running() == 0 })
	told.check(t, pool) // the handler's late result is not reported as another end
}

func TestEndHookAtCrashLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	die, dies := latch(t)
	hangs := map[string]handler{"hangs": func(context.Context, *raw) (*runner.Outcome, error) { <-die; return nil, errors.New("late") }}
	var owner, other ends
	a := start(t, pool, runner.Options{OnEnd: owner.add}, hangs, runner.MaxCrashes(1))
	id := enqueueStarted(t, a, runner.Chain(rawArgs("hangs"), rawArgs("hangs")), runner.Subject("s"))
	exec(t, pool, `insert into trapeze.pods (id, name, lease_until, closed_at, closed) values (gen_random_uuid(), 'dead', now(), now(), 'lapsed')`)
	exec(t, pool, `update trapeze.live set pod = (select id from trapeze.pods where name = 'dead') where id = $1`, id)
	exec(t, pool, `update trapeze.pods set drained = true where name <> 'dead'`)
	b := start(t, pool, runner.Options{OnEnd: other.add}, nil)
	pgtest.Wait(t, "one of the pods is notified", func() bool { return len(owner.of(id))+len(other.of(id)) > 0 })
	e := append(owner.of(id), other.of(id)...)[0]
	is.Equal(e, job.End{ID: id, PipelineID: id, Kind: "hangs", Lane: "default", Subject: "s", Attempt: 1, State: job.Failed, Reason: job.ReasonCrashed,
		Error: "the pod dead that ran it died or lost its lease", ErrorClass: job.ClassCrashLimit})
	dies()
	pgtest.Wait(t, "the handler returns", func() bool { return a.Running() == 0 })
	is.Equal(len(owner.of(id))+len(other.of(id)), 1) // the owner's late error is not reported as another end
	is.Equal(b.Running(), 0)
}

func TestHangingEndHook(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var told ends
	r := newRunner(t, pool, runner.Options{OnEnd: func(ctx context.Context, e job.End) {
		<-wait
		told.add(ctx, e)
	}}, map[string]handler{"k": succeed})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	for range 20 {
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded) // jobs end while the first call to the hook hangs
	}
	stop()
	pgtest.Wait(t, "the pod has left", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.pods where closed_at is null`) == 0
	})
	select {
	case err := <-over:
		t.Fatal("Run does not wait for the remaining calls", err)
	case <-time.After(250 * time.Millisecond): // there is no event to wait for while Run does not return
	}
	open()
	is.NoErr(<-over)
	told.mu.Lock()
	defer told.mu.Unlock()
	is.Equal(len(told.list), 20)
}

// A command that ends a waiting job calls the hook on the pod that ran the command.
func TestWaitingJobCancelReport(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var told ends
	r := start(t, pgtest.Pool(t), runner.Options{OnEnd: told.add}, map[string]handler{"k": succeed})
	id := enqueue(t, r, rawArgs("k"), runner.Delay(time.Hour))
	_, err := r.Admin("me").Cancel(t.Context(), id)
	is.NoErr(err)
	pgtest.WaitFor(t, 20*time.Second, "the end is reported", func() bool { return len(told.of(id)) == 1 })
	is.Equal(told.of(id)[0].State, job.Cancelled)
}
