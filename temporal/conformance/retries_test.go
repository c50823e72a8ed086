package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// retries are the cases about jobs that run more than once.
var retries = []testCase{
	{name: "a job is retried until it succeeds", run: func(w *world) {
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%d/%d", j.Attempt(), j.MaxAttempts())
			if j.Attempt() < 3 {
				return nil, errors.New("not yet")
			}
			return runner.Done(j.Attempt()), nil
		}, runner.Retry(5, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(string(j.Result), "3")
		w.Equal(j.Attempt, 3)
		w.Equal(seen.String(), "1/5 2/5 3/5")
	}},
	{name: "a job fails when its attempts are exhausted", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return nil, fmt.Errorf("try %d", j.Attempt())
		}, runner.Retry(3, soon))
		w.start()
		j := w.ended(w.enqueue(of("a"), runner.Subject("s"), runner.Priority(7)))
		w.Equal(j.State, job.Failed)
		w.Equal(podtest.ReasonOf(j), job.ReasonAttemptsExhausted)
		w.Equal(podtest.Message(j), "try 3")
		w.Equal(j.Attempt, 3)
		w.True(j.Subject == "s" && j.Priority == 7)
	}},
	{name: "a panic is retried like an error", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				panic("once")
			}
			return nil, nil
		}, runner.Retry(2, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(j.Attempt, 2)
	}},
	{name: "the delay between attempts doubles", run: func(w *world) {
		var began []time.Time
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			began = append(began, time.Now())
			return nil, errors.New("no")
		}, runner.Retry(3, job.Backoff{Base: 150 * time.Millisecond, Jitter: -1}))
		w.start()
		w.Equal(w.ended(w.enqueue(of("a"))).Attempt, 3)
		w.True(began[1].Sub(began[0]) >= 150*time.Millisecond)
		w.True(began[2].Sub(began[1]) >= 300*time.Millisecond)
	}},
	{name: "a handler sets the delay before the next attempt", run: func(w *world) {
		var began []time.Time
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if began = append(began, time.Now()); j.Attempt() == 1 {
				return nil, job.RetryAfter(200*time.Millisecond, errors.New("quota"))
			}
			return nil, nil
		})
		w.start()
		w.Equal(w.ended(w.enqueue(of("a"))).State, job.Succeeded)
		w.True(began[1].Sub(began[0]) >= 200*time.Millisecond)
	}},
	{name: "a job that waits for its next attempt occupies no slot", run: func(w *world) {
		w.handle("waits", fails(job.RetryAfter(time.Hour, errors.New("quota"))))
		w.handle("a", nothing)
		w.start()
		one := 1
		_, err := w.r.Admin("ana").SetLane(w.Context(), job.DefaultLane, job.LaneChange{Slots: job.To(one)})
		w.NoErr(err)
		id := w.enqueue(of("waits"))
		w.wait("the retry is planned", func() bool { return w.count(id, "job.retried") == 1 })
		j := w.get(id)
		w.Equal(j.State, job.Pending)
		w.Equal(podtest.ReasonOf(j), job.ReasonRetry)
		w.True(time.Until(*j.RunAfter) > 59*time.Minute)
		w.Equal(w.ended(w.enqueue(of("a"))).State, job.Succeeded)
		_, err = w.r.Admin("ana").Cancel(w.Context(), id)
		w.NoErr(err)
	}},
	{name: "a permanent error is not retried", run: func(w *world) {
		w.handle("a", fails(fmt.Errorf("ingest: %w", job.Permanent(errors.New("no such file")))), runner.Retry(5, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.Attempt, 1)
		w.Equal(podtest.ReasonOf(j), job.ReasonError)
		w.Equal(podtest.Message(j), "ingest: no such file")
	}},
	{name: "a retryable error is retried without a policy", run: func(w *world) {
		w.handle("a", fails(job.RetryAfter(0, errors.New("again"))))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.Attempt, 10)
		w.Equal(podtest.ReasonOf(j), job.ReasonAttemptsExhausted)
	}},
	{name: "a job's limit of attempts overrides its kind's", run: func(w *world) {
		w.handle("a", fails(errors.New("no")), runner.Retry(5, soon))
		w.start()
		j := w.ended(w.enqueue(of("a"), runner.MaxAttempts(2)))
		w.Equal(j.Attempt, 2)
		w.Equal(podtest.ReasonOf(j), job.ReasonAttemptsExhausted)
	}},
	{name: "a timeout is a failed attempt", run: func(w *world) {
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, nil
		}, runner.Timeout(300*time.Millisecond), runner.Retry(2, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(j.Attempt, 2)
	}},
	{name: "a snooze spends no attempt", run: func(w *world) {
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%d", j.Snoozes())
			if j.Snoozes() < 4 {
				return runner.Snooze(time.Millisecond, "GPU busy"), nil
			}
			return runner.Done(j.Attempt()), nil
		})
		w.start()
		j := w.ended(w.enqueue(of("a"), runner.Subject("s")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(string(j.Result), "1")
		w.Equal(seen.String(), "0 1 2 3 4")
		w.Equal(w.count(j.ID, "job.snoozed"), 4)
	}},
	{name: "a snoozed job waits, and an error after it counts as the first", run: func(w *world) {
		var began []time.Time
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if began = append(began, time.Now()); j.Snoozes() == 0 {
				return runner.Snooze(200*time.Millisecond, "busy"), nil
			}
			if j.Attempt() == 1 {
				return nil, errors.New("once")
			}
			return nil, nil
		}, runner.Retry(2, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(j.Attempt, 2)
		w.True(began[1].Sub(began[0]) >= 200*time.Millisecond)
	}},
	{name: "a hung handler is inactive", run: func(w *world) {
		var calls atomic.Int64
		causes := make(chan error, 1)
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if calls.Add(1) > 1 {
				return nil, nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}, runner.InactivityTimeout(300*time.Millisecond), runner.Retry(2, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.True(errors.Is(receive(w, causes), job.ErrInactive))
		w.Equal(j.State, job.Succeeded)
		w.Equal(j.Attempt, 2)
	}},
}
