package runner_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A snooze uses no attempt, so a snooze into the past would run the job again without end.
func TestSnoozeIntoPast(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{
		"always": func(context.Context, *raw) (*runner.Outcome, error) {
			calls.Add(1)
			return runner.Snooze(-time.Hour, "until a time that has passed"), nil
		},
		"with-backoff": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Snooze(math.MinInt64, "").WithBackoff(), nil
		},
		"once": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return runner.Snooze(-time.Nanosecond, "a clock that ran on"), nil
			}
			return nil, nil
		},
		"retry-after": func(context.Context, *raw) (*runner.Outcome, error) {
			return nil, runner.RetryAfter(math.MinInt64, errors.New("no"))
		},
	}, runner.Retry(2, runner.Backoff{Base: time.Millisecond, Jitter: math.NaN()}))
	for kind, says := range map[string]string{"always": "snooze of -1h0m0s is negative", "with-backoff": "is negative", "retry-after": "no"} {
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(j.State, job.Failed)
		is.Equal(j.Attempt, 2)
		is.True(strings.Contains(message(j), says))
	}
	is.Equal(calls.Load(), int64(2))
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("once"))).State, job.Succeeded) // an ordinary failed attempt is retried
}
