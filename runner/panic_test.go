package runner_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestPanicFailsAttempt(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{Slots: 1}, map[string]handler{
		"panic":  func(context.Context, *raw) (*runner.Outcome, error) { panic("out of cheese") },
		"goexit": func(context.Context, *raw) (*runner.Outcome, error) { runtime.Goexit(); return nil, nil },
		"nil":    func(context.Context, *raw) (*runner.Outcome, error) { panic(nil) },
		"fine":   succeed,
	})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("panic")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), "panic: out of cheese"))
	is.True(strings.Contains(message(j), "panic_test.go")) // the stack trace contains the source line
	j = waitEnded(t, r, enqueue(t, r, rawArgs("goexit")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), "exited its goroutine without returning"))
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("nil"))).State, job.Failed)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("fine"))).State, job.Succeeded) // the pod's only slot is free again
	pgtest.Wait(t, "no slot is in use", func() bool { return r.Running() == 0 })
}

func TestPanicRetryPolicy(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{Slots: 1}, map[string]handler{
		"panic": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() < 3 {
				panic("not yet")
			}
			return nil, nil
		},
		"goexit": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() < 3 {
				runtime.Goexit()
			}
			return nil, nil
		},
	}, runner.Retry(3, soon))
	for _, kind := range []string{"panic", "goexit"} {
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(j.State, job.Succeeded)
		is.Equal(j.Attempt, 3)
	}
}

func TestTimeoutSpendsAttempt(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	causes := make(chan error, 10)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"slow": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, ctx.Err()
	}}, runner.Timeout(30*time.Millisecond), runner.Retry(2, soon))
	j := waitEnded(t, r, enqueue(t, r, rawArgs("slow")))
	is.Equal(j.State, job.Failed)
	is.Equal(reasonOf(j), job.ReasonTimeout)
	is.Equal(j.Attempt, 2)
	is.True(errors.Is(<-causes, job.ErrTimeout))
}

func TestHandlerIgnoringContext(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := latch(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{Slots: 1, StuckAfter: 50 * time.Millisecond, PollInterval: 100 * time.Millisecond}, map[string]handler{
		"deaf": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			return runner.Then(rawArgs("fine")), nil
		},
		"fine": succeed,
	}, runner.Timeout(30*time.Millisecond))
	id := enqueue(t, r, rawArgs("deaf"))
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Failed)
	is.Equal(reasonOf(j), job.ReasonTimeout)
	is.True(strings.Contains(message(j), "ignored its cancelled context"))
	is.Equal(metricValue(t, r, "trapeze_stuck_handlers"), 1.0)
	is.Equal(r.Running(), 1) // the slot stays in use because the handler is still running
	next := enqueue(t, r, rawArgs("fine"))
	time.Sleep(250 * time.Millisecond) // long enough for two polls; there is no event to wait for when nothing happens
	is.Equal(get(t, r, next).State, job.Pending)
	open()
	is.Equal(waitEnded(t, r, next).State, job.Succeeded) // the handler has returned, so the slot is free
	pgtest.Wait(t, "the handler is no longer stuck", func() bool { return metricValue(t, r, "trapeze_stuck_handlers") == 0 })
	is.Equal(get(t, r, id).EventNo, j.EventNo) // the handler's late result is ignored
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id is not null`), 0)
}

func TestRetryBesideStuckHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{Slots: 2, StuckAfter: 50 * time.Millisecond}, map[string]handler{
		"deaf": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				<-wait
			}
			return runner.Done(j.Fence()), nil
		},
	}, runner.Timeout(50*time.Millisecond), runner.Retry(2, soon))
	j := waitEnded(t, r, enqueue(t, r, rawArgs("deaf"), runner.Subject("s")))
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), "2") // the result of the second claim
	open()
	pgtest.Wait(t, "the stuck handler returns", func() bool { return r.Running() == 0 })
	is.Equal(get(t, r, j.ID).EventNo, j.EventNo) // the first result is ignored
	checkHistory(t, pool, r)
}
