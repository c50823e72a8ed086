package runner_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// looks is a fragment of the statement that polls the jobs awaited in a process.
const looks = "is null as gone"

// looking returns the number of goroutines in this process that poll for awaited jobs.
func looking() int { return goroutinesIn("run") }

// goroutinesIn returns the number of goroutines that are in a method of identity.Waiters.
func goroutinesIn(method string) int {
	buf := make([]byte, 8<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "identity.(*Waiters)."+method+"(")
}

// This test is not parallel, because it counts all goroutines in the process.
func TestStatementsForThousandWaiters(t *testing.T) {
	is := is.New(t)
	url := pgtest.URL(t)
	wait, open := latch(t)
	start(t, pgtest.Connect(t, url), runner.Options{Slots: 100}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		<-wait
		return runner.Done(string(j.Args.JSON)), nil
	}})
	pool, heard := heardPool(t, url, looks)
	client := newRunner(t, pool, runner.Options{TraceQueries: true}, nil) // a program that runs no jobs
	const n = 1000
	list := make([]job.Args, n)
	for i := range list {
		list[i] = rawArgs("k", fmt.Sprint(i))
	}
	ids, err := client.EnqueueMany(t.Context(), list, runner.AllowUnregistered())
	is.NoErr(err)
	type answer struct {
		i      int
		result string
		err    error
	}
	answers := make(chan answer, n)
	for i, id := range ids {
		go func() {
			result, err := runner.Result[string](t.Context(), client, id)
			answers <- answer{i, result, err}
		}()
	}
	pgtest.Wait(t, "all callers wait", func() bool { return goroutinesIn("Wait") == n })
	began, before := time.Now(), heard.count(looks)
	pgtest.Wait(t, "further polls of all jobs", func() bool { return heard.count(looks) > before+2 })
	is.Equal(looking(), 1) // one goroutine for all waiters
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = client.Wait(gone, ids[0])
	is.True(errors.Is(err, context.Canceled))
	open()
	for range n {
		a := <-answers
		is.NoErr(a.err)
		is.Equal(a.result, fmt.Sprint(a.i)) // each waiter gets its own result
	}
	// There is at most one poll every 50 ms. The callers that were the last to wait may cause a few additional polls.
	most := 10 + int(time.Since(began)/(50*time.Millisecond))
	t.Logf("%d polls in %s", heard.count(looks)-before, time.Since(began))
	is.True(heard.count(looks)-before <= most)
	pgtest.Wait(t, "polling has stopped", func() bool { return looking() == 0 })
	after := heard.count(looks)
	_, err = client.GetJob(t.Context(), ids[0])
	is.NoErr(err)
	is.Equal(heard.count(looks), after)
}

func TestCancelledWaiterAmongOthers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	id := enqueueStarted(t, r, rawArgs("k"))
	bored := errors.New("bored")
	ctx, giveUp := context.WithCancelCause(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := r.Wait(ctx, id); first <- err }()
	go func() { _, err := r.Wait(t.Context(), id); second <- err }()
	giveUp(bored)
	is.True(errors.Is(<-first, bored)) // the error is the cancellation cause of the caller's context
	select {
	case err := <-second:
		t.Fatalf("the other waiter got %v", err)
	default:
	}
	open()
	is.NoErr(<-second)
}

func TestWaitDuringDatabaseOutage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	wait, open := latch(t)
	other := start(t, pgtest.Connect(t, url), runner.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return runner.Done("there"), nil
	}})
	proxy, pool := cable(t, url)
	client := newRunner(t, pool, runner.Options{}, nil)
	id := enqueueStarted(t, other, rawArgs("k"))
	type answer struct {
		result string
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		result, err := runner.Result[string](t.Context(), client, id)
		got <- answer{result, err}
	}()
	pgtest.Wait(t, "the client polls", func() bool { return proxy.Links() > 0 })
	proxy.Refuse()
	proxy.Reset()
	pgtest.Wait(t, "polls fail", func() bool { return metricValue(t, client, "trapeze_db_errors_total") >= 3 })
	open()
	waitEnded(t, other, id)
	select {
	case a := <-got:
		t.Fatalf("got a result without a database: %+v", a)
	default:
	}
	proxy.Pass()
	is.Equal(<-got, answer{"there", nil})
}

func TestWaitQueryRejected(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	client := newRunner(t, pool, runner.Options{}, nil)
	exec(t, pool, `alter table trapeze.parked rename to hidden`)
	_, err := client.Wait(t.Context(), 1)
	var pg *pgconn.PgError
	is.True(errors.As(err, &pg) && pg.Code == "42P01") // the table does not exist
	is.Equal(metricValue(t, client, "trapeze_db_errors_total"), 1.0)
}

func TestWaitForLocalJobEnd(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool, heard := heardPool(t, pgtest.URL(t), looks)
	wait, open := latch(t)
	returned := make(chan time.Time, 1)
	r := start(t, pool, runner.Options{TraceQueries: true}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		returned <- time.Now()
		return nil, nil
	}})
	id := enqueueStarted(t, r, rawArgs("k"))
	woken := make(chan time.Time, 1)
	go func() {
		_, _ = r.Wait(t.Context(), id)
		woken <- time.Now()
	}()
	delayPolls(t, pool, heard)
	open()
	is.True((<-woken).Sub(<-returned) < 9*time.Second)
}

func TestWaitForLocallyAbortedJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool, heard := heardPool(t, pgtest.URL(t), looks)
	r := newRunner(t, pool, runner.Options{TraceQueries: true}, nil) // a program that runs no jobs, so the job stays pending
	made, err := r.Enqueue(t.Context(), rawArgs("k"), runner.AllowUnregistered())
	is.NoErr(err)
	woken := make(chan time.Time, 1)
	go func() {
		_, _ = r.Wait(t.Context(), made.ID)
		woken <- time.Now()
	}()
	delayPolls(t, pool, heard)
	_, err = r.Admin("ann").CancelPipeline(t.Context(), made.ID)
	is.NoErr(err)
	aborted := time.Now()
	is.True((<-woken).Sub(aborted) < 9*time.Second)
}

// delayPolls slows a poll of the awaited jobs to more than half a second, so that the next poll is at least 10 s away.
func delayPolls(t *testing.T, pool *pgxpool.Pool, heard *listener) {
	t.Helper()
	pgtest.Wait(t, "polls of all jobs, not only of new ones", func() bool { return heard.count(looks) >= 3 })
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `lock table trapeze.parked`); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "a poll waits", func() bool {
		return queryOne[bool](t, pool, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
			and query like '%`+looks+`%' and clock_timestamp() - query_start > interval '0.5 s')`)
	})
}

func TestWaitOnRetriedJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	client := newRunner(t, pool, runner.Options{}, nil)
	start(t, pool, runner.Options{}, map[string]handler{
		"retried": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() < 3 {
				return nil, errors.New("once more")
			}
			return runner.Done(j.Attempt()), nil
		},
		"fails": func(context.Context, *raw) (*runner.Outcome, error) {
			return nil, job.Permanent(errors.New("torn\nin the middle"))
		},
		"silent": succeed,
	}, runner.Retry(3, soon))
	submit := func(kind string, options ...runner.EnqueueOption) int64 {
		return enqueue(t, client, rawArgs(kind), append(options, runner.AllowUnregistered())...)
	}
	attempts, err := runner.Result[int](t.Context(), client, submit("retried"))
	is.NoErr(err)
	is.Equal(attempts, 3) // Result waits for the last attempt

	id := submit("fails")
	_, err = runner.Result[int](t.Context(), client, id)
	var end *job.EndError
	is.True(errors.As(err, &end))
	is.Equal(*end, job.EndError{ID: id, State: job.Failed, Reason: job.ReasonError, Message: "torn\nin the middle", Class: job.ClassError})
	j, err := client.Wait(t.Context(), id) // the job has already finished
	is.NoErr(err)                          // Wait succeeds even if the job failed
	is.Equal(j.State, job.Failed)

	id = submit("fails", runner.Delay(time.Hour))
	_, err = client.Admin("").Cancel(t.Context(), id)
	is.NoErr(err)
	_, err = runner.Result[int](t.Context(), client, id)
	is.True(errors.As(err, &end))
	is.Equal(end.State, job.Cancelled)

	id = submit("silent")
	zero, err := runner.Result[*string](t.Context(), client, id)
	is.NoErr(err)
	is.True(zero == nil) // the job has no result
	_, err = runner.Result[int](t.Context(), client, submit("retried", runner.Delay(time.Millisecond)))
	is.NoErr(err)
	_, err = client.Wait(t.Context(), 1<<60)
	is.True(errors.Is(err, job.ErrNotFound))
}
