package runner_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// runInBackground runs r in the background. stop cancels its context, and ended receives the result of Run.
func runInBackground(t *testing.T, r *runner.Runner) (stop func(), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := r.Ready(); return ready })
	return cancel, done
}

func TestNextStepsDuringShutdown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	handlers := map[string]handler{
		"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			return runner.Then(rawArgs("b")).Result(ctx.Err() == nil), nil
		},
		"b": succeed,
	}
	r := newRunner(t, pool, runner.Options{ShutdownGrace: 10 * time.Second}, handlers)
	stop, done := runInBackground(t, r)
	id := enqueueStarted(t, r, rawArgs("a"))
	stop()
	pgtest.Wait(t, "the pod reports that it is draining", func() bool {
		ready, reasons := r.Ready()
		return !ready && reasons[0] == "draining"
	})
	pgtest.Wait(t, "no claim is under way, which could still find the next job", func() bool {
		return queryOne[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid()`) == 0
	})
	later := enqueue(t, r, rawArgs("b"))
	is.Equal(get(t, r, later).State, job.Pending) // jobs can still be submitted, but none starts here
	open()
	is.NoErr(<-done)
	j := get(t, r, id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), "true")                                                                       // the handler's context was not cancelled during the grace period
	is.Equal(queryOne[string](t, pool, `select state from trapeze.job where parent_id = $1`, id), "pending") // the next step is left to another pod
	is.Equal(queryOne[string](t, pool, `select closed from trapeze.pods`), "left")
	start(t, pool, runner.Options{}, handlers)
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded' and fence = 1 and crashes = 0`), 3)
	checkHistory(t, pool, r)
}

func TestHandBackAfterShutdownGrace(t *testing.T) {
	t.Parallel()
	for _, hurry := range []bool{false, true} {
		t.Run(map[bool]string{false: "after the grace period", true: "at once on request"}[hurry], func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			causes := make(chan error, 1)
			handlers := map[string]handler{"slow": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
				if j.Fence() > 1 {
					return nil, nil
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return nil, ctx.Err()
			}}
			o := runner.Options{ShutdownGrace: 100 * time.Millisecond}
			if hurry {
				o.ShutdownGrace = time.Hour
			}
			r := newRunner(t, pool, o, handlers)
			stop, done := runInBackground(t, r)
			id := enqueueStarted(t, r, rawArgs("slow"), runner.Subject("s"))
			stop()
			if hurry {
				r.StopNow()
				r.StopNow() // a second call has no effect
			}
			is.True(errors.Is(<-causes, job.ErrShutdown))
			is.NoErr(<-done)
			j := get(t, r, id)
			is.Equal(j.State, job.Pending)
			is.Equal(j.Attempt, 0) // no attempt was used up
			is.Equal(j.Crashes, 0)
			is.Equal(j.Fence, int64(1)) // the fence is not reset
			is.Equal(eventsOf(t, r, id)[2], "job.handed_back")
			b := start(t, pool, runner.Options{}, handlers)
			is.Equal(waitEnded(t, b, id).Fence, int64(2))
			checkHistory(t, pool, b)
		})
	}
}

// A process can be told to stop at any point during startup. Run then returns no error, and closes the pod's row if the pod had already
// registered.
func TestStopDuringRunnerStart(t *testing.T) {
	t.Parallel()
	const heartbeat = "update trapeze.pods"
	for _, statement := range []string{"migrations", "missing_days", "insert into trapeze.pods", heartbeat} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			direct := pgtest.Connect(t, url)
			ctx, stop := context.WithCancel(t.Context())
			proxy := pgtest.NewProxy(t, url)
			proxy.CutReplyOnce(func(sent []byte) bool {
				if bytes.Contains(sent, []byte(statement)) {
					stop()
				}
				return false
			})
			r := newRunner(t, pgtest.Connect(t, proxy.URL()), runner.Options{}, map[string]handler{"k": succeed})
			is.NoErr(r.Run(ctx))
			is.True(ctx.Err() != nil) // startup reached the statement
			if statement == heartbeat {
				is.Equal(queryOne[string](t, direct, `select closed from trapeze.pods`), "left")
			}
		})
	}
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		is := is.New(t)
		proxy := pgtest.NewProxy(t, pgtest.URL(t))
		pool := pgtest.Connect(t, proxy.URL())
		proxy.Refuse()
		proxy.Reset()
		var log podtest.Log
		r := newRunner(t, pool, runner.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, map[string]handler{"k": succeed})
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.Run(ctx) }()
		pgtest.Wait(t, "the runner waits for the database", func() bool { return strings.Contains(log.String(), "not started yet") })
		stop()
		is.NoErr(<-ran)
		is.Equal(strings.Count(log.String(), "runner stopped before it had started"), 1)
	})
}

func TestHandlerIgnoringShutdown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	deaf := map[string]handler{"deaf": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil }}
	a := newRunner(t, pool, runner.Options{ShutdownGrace: 50 * time.Millisecond}, deaf)
	stop, done := runInBackground(t, a)
	id := enqueueStarted(t, a, rawArgs("deaf"))
	b := start(t, pool, runner.Options{PollInterval: time.Hour}, map[string]handler{"deaf": succeed})
	stop()
	is.NoErr(<-done) // Run does not wait for the handler
	j := waitEnded(t, b, id)
	is.Equal(j.State, job.Succeeded) // b was notified; its next poll is an hour away
	is.Equal(j.Crashes, 0)
	is.Equal(metricValue(t, a, "trapeze_stuck_handlers"), 1.0)
	open()
	pgtest.Wait(t, "the handler returns", func() bool { return a.Running() == 0 })
	is.Equal(metricValue(t, a, "trapeze_stuck_handlers"), 0.0)
	is.Equal(get(t, b, id).EventNo, j.EventNo) // the handler's late result changed nothing
	checkHistory(t, pool, b)
}

func TestGoroutinesAfterRunAndClose(t *testing.T) {
	is := is.New(t) // not parallel, because the test counts goroutines
	pool := pgtest.Pool(t)
	exec(t, pool, `select 1`)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{
		"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			j.Progress(1, 2)
			return runner.Then(rawArgs("b")), nil
		},
		"b": succeed,
	}, runner.Timeout(time.Hour))
	stop, done := runInBackground(t, r)
	for range 20 {
		enqueue(t, r, rawArgs("a"), runner.Subject("s"))
	}
	quiet(t, pool)
	stop()
	is.NoErr(<-done)
	r.Close()
	pgtest.Wait(t, "every goroutine of the runner ends:\n"+ours(), func() bool { return ours() == "" })
}

// ours returns the stacks of all goroutines that run code from this module or gocron, except the test's own.
func ours() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var found []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "testing.") || !strings.Contains(g, "trapeze/runner.") && !strings.Contains(g, "trapeze/poller") &&
			!strings.Contains(g, "trapeze/scheduler") && !strings.Contains(g, "gocron") && !strings.Contains(g, "trapeze/internal/store") {
			continue
		}
		found = append(found, g)
	}
	return strings.Join(found, "\n\n")
}
