package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func failWith(err error) handler {
	return func(context.Context, *raw) (*runner.Outcome, error) { return nil, err }
}

var soon = job.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond}

func TestSingleAttemptError(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{MaxAttempts: 1}, map[string]handler{"fail": failWith(errors.New("disk on fire"))})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("fail")))
	is.Equal(j.State, job.Failed)
	is.Equal(j.Attempt, 1)
	is.Equal(reasonOf(j), job.ReasonError)
	is.Equal(message(j), "disk on fire")
	is.Equal(eventsOf(t, r, j.ID), []string{"job.enqueued", "job.claimed", "job.failed"})
}

func TestHandlerReturnsLostLease(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"liar": func(context.Context, *raw) (*runner.Outcome, error) {
		calls.Add(1)
		return nil, job.ErrLeaseLost
	}})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("liar")))
	is.Equal(j.State, job.Failed)
	is.Equal(calls.Load(), int64(1)) // the attempt counts; otherwise, the job would be handed back and run again forever
}

func TestRetryPolicyUntilAttemptsExhausted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name) values ('slow')`)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"fail": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, fmt.Errorf("try %d", j.Attempt())
		},
	}, runner.Retry(3, soon))
	id := enqueue(t, r, rawArgs("fail", `{"n": 12345678901234567890}`), runner.Lane("slow"), runner.Subject("s"), runner.Priority(7))
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Failed)
	is.Equal(reasonOf(j), job.ReasonAttemptsExhausted)
	is.Equal(message(j), "try 3")
	is.Equal(j.Attempt, 3)
	is.Equal(j.Fence, int64(3))                                      // each claim has a new fence
	is.True(j.Lane == "slow" && j.Subject == "s" && j.Priority == 7) // the job's settings are unchanged
	is.Equal(string(j.Args), `{"n":12345678901234567890}`)
	is.Equal(strings.Count(fmt.Sprint(eventsOf(t, r, id)), "job.retried"), 2)
	checkHistory(t, pool, r)
}

func TestRetryableAndPermanentErrors(t *testing.T) {
	t.Parallel()
	again := errors.New("again")
	cases := map[string]struct {
		err      error
		options  []runner.HandleOption
		enqueue  []runner.EnqueueOption
		attempts int
		reason   job.Reason
	}{
		"retryable without a policy":      {err: job.RetryAfter(0, again), attempts: 10, reason: job.ReasonAttemptsExhausted},
		"retryable with a policy":         {err: job.Retryable(again), options: []runner.HandleOption{runner.Retry(2, soon)}, attempts: 2, reason: job.ReasonAttemptsExhausted},
		"permanent with a policy":         {err: fmt.Errorf("ingest: %w", job.Permanent(again)), options: []runner.HandleOption{runner.Retry(5, soon)}, attempts: 1, reason: job.ReasonError},
		"a limit of the job":              {err: again, options: []runner.HandleOption{runner.Retry(5, soon)}, enqueue: []runner.EnqueueOption{runner.MaxAttempts(2)}, attempts: 2, reason: job.ReasonAttemptsExhausted},
		"retryable but only one allowed":  {err: job.Retryable(again), enqueue: []runner.EnqueueOption{runner.MaxAttempts(1)}, attempts: 1, reason: job.ReasonError},
		"retryable but only one attempt":  {err: job.Retryable(again), options: []runner.HandleOption{runner.Retry(1, soon)}, attempts: 1, reason: job.ReasonError},
		"a permanent one around a repeat": {err: job.Permanent(job.Retryable(again)), attempts: 1, reason: job.ReasonError},
	}
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, nil)
	for name, c := range cases {
		runner.HandleRaw(r, kindOf(name), failWith(c.err), c.options...)
	}
	run(t, r)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs(kindOf(name)), c.enqueue...))
			is.Equal(j.State, job.Failed)
			is.Equal(j.Attempt, c.attempts)
			is.Equal(reasonOf(j), c.reason)
		})
	}
}

func TestRetryAfterWaitsThatLong(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"fail": failWith(job.RetryAfter(time.Hour, errors.New("quota")))})
	id := enqueue(t, r, rawArgs("fail"))
	pgtest.Wait(t, "the retry is planned", func() bool { return slices.Contains(eventsOf(t, r, id), "job.retried") })
	j := get(t, r, id)
	is.Equal(j.State, job.Pending)
	is.Equal(reasonOf(j), job.Reason("retry"))
	is.True(time.Until(*j.RunAfter) > 59*time.Minute) // the time of the next attempt is visible
	is.Equal(j.Pod, nil)                              // the job holds no lease
	pgtest.Wait(t, "it holds no slot", func() bool { return r.Running() == 0 })
}

func TestASnoozeSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var runs atomic.Int64
	r := start(t, pool, runner.Options{}, map[string]handler{"gpu": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if runs.Add(1) < 5 {
			return runner.Snooze(time.Millisecond, "GPU busy"), nil
		}
		return runner.Done(j.Attempt()), nil
	}})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("gpu"), runner.Subject("s")))
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), "1") // still the first attempt, after four waits
	is.Equal(j.Fence, int64(5))
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, j.ID, 0, 100)
	is.NoErr(err)
	i := slices.IndexFunc(list, func(e job.Event) bool { return e.Event == "job.snoozed" })
	is.Equal(*list[i].Message, "GPU busy") // the history contains the reason
	checkHistory(t, pool, r)
}

func TestDelayedJobsBetweenPolls(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{PollInterval: time.Hour, HeartbeatInterval: time.Second, LeaseDuration: 5 * time.Second}, map[string]handler{"late": succeed})
	began := time.Now()
	for range 5 {
		waitEnded(t, r, enqueue(t, r, rawArgs("late"), runner.Delay(30*time.Millisecond)))
	}
	is.True(time.Since(began) >= 150*time.Millisecond) // no job ran before it was due
	is.True(time.Since(began) < 5*time.Second)         // a local timer, not the poll, started the jobs
}

// explosive is a result type that panics when it is encoded.
type explosive struct{}

func (explosive) MarshalJSON() ([]byte, error) { panic("boom in MarshalJSON") }

func TestUnstorableResult(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	results := map[string]any{
		"too-large": strings.Repeat("x", job.MaxResultBytes), "not-encodable": make(chan int), "explosive": explosive{}, "nul": "a\x00b",
	}
	handlers := map[string]handler{}
	for name, result := range results {
		handlers[name] = func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("nul")).Result(result), nil
		}
	}
	r := start(t, pool, runner.Options{MaxAttempts: 3}, handlers)
	for name, want := range map[string]job.Reason{
		"too-large": job.ReasonResultTooLarge, "not-encodable": job.ReasonInvalidArgs, "explosive": job.ReasonError, "nul": job.ReasonInvalidArgs,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs(name)))
			is.Equal(j.State, job.Failed)
			is.Equal(reasonOf(j), want)
			is.Equal(j.Attempt, 1) // the job was not retried, because a retry would not help
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id = $1`, j.ID), 0)
		})
	}
}

// nilError is an error type whose Error method panics on a nil pointer.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestTypedNilHandlerError(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var none *nilError
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"fail": failWith(none)})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("fail")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), "panic"))
}
