package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestStaleHandlerSpendsAttempts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	causes := make(chan error, 2)
	r := start(t, pool, runner.Options{}, map[string]handler{"hangs": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		j.Progress(1, 10) // one sign of life, then none
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, errors.New("gave up")
	}}, runner.Retry(2, soon), runner.InactivityTimeout(100*time.Millisecond))
	id := enqueue(t, r, rawArgs("hangs"), runner.Subject("s"))
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Failed)
	is.Equal(reasonOf(j), job.ReasonInactive)
	is.Equal(j.Attempt, 2)                                // retried until no attempts were left
	is.True(strings.Contains(message(j), "sign of life")) // the message is independent of the handler's error
	is.True(strings.Contains(message(j), "gave up"))
	is.True(errors.Is(<-causes, job.ErrInactive))
	is.True(errors.Is(<-causes, job.ErrInactive))
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 10)
	is.NoErr(err)
	is.Equal(list[2].Event, "job.retried")
	is.True(strings.Contains(*list[2].Message, "sign of life")) // the history includes the reason
	checkHistory(t, pool, r)
}

func TestStaleTimerResetByProgress(t *testing.T) {
	t.Parallel()
	const limit, long = 2 * time.Second, 3 * time.Second
	signs := map[string]func(ctx context.Context, j *raw) error{
		"progress":   func(_ context.Context, j *raw) error { j.Progress(1, 2); return nil },
		"message":    func(_ context.Context, j *raw) error { j.Message("at it"); return nil },
		"emit":       func(ctx context.Context, j *raw) error { return j.Emit(ctx, "beat", "", "", nil) },
		"checkpoint": func(ctx context.Context, j *raw) error { return j.Checkpoint(ctx, 1) },
		"tx":         func(ctx context.Context, j *raw) error { return j.Tx(ctx, func(pgx.Tx) error { return nil }, 1) },
	}
	handlers := map[string]handler{}
	for kind, sign := range signs {
		handlers[kind] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			tick := time.NewTicker(limit / 8)
			defer tick.Stop()
			for began := time.Now(); time.Since(began) < long; {
				if err := sign(ctx, j); err != nil {
					return nil, err
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			return nil, nil
		}
	}
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{InactivityTimeout: limit}, handlers)
	var ids []int64
	for kind := range signs {
		ids = append(ids, enqueue(t, r, rawArgs(kind)))
	}
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded) // each kind of sign of life counts
	}
}

func TestStaleHandlerIgnoringContext(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := latch(t)
	r := start(t, pgtest.Pool(t), runner.Options{InactivityTimeout: 50 * time.Millisecond, StuckAfter: 100 * time.Millisecond},
		map[string]handler{"deaf": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil }})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("deaf")))
	is.Equal(j.State, job.Failed)
	is.Equal(reasonOf(j), job.ReasonInactive)
	is.Equal(r.Running(), 1) // the handler's goroutine still occupies the slot
	open()
	pgtest.Wait(t, "the slot is free", func() bool { return r.Running() == 0 })
}

func TestStaleLimitPerKind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := latch(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{InactivityTimeout: 50 * time.Millisecond}, map[string]handler{
		"quiet": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-wait:
				return nil, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		},
	}, runner.InactivityTimeout(0))
	watched := start(t, pool, runner.Options{InactivityTimeout: 50 * time.Millisecond}, map[string]handler{
		"watched": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	})
	id := enqueueStarted(t, r, rawArgs("quiet"))
	for range 3 {
		is.Equal(reasonOf(waitEnded(t, watched, enqueue(t, watched, rawArgs("watched")))), job.ReasonInactive) // each of these jobs takes as long as the default limit
	}
	open()
	is.Equal(waitEnded(t, r, id).State, job.Succeeded) // the default limit did not apply to this job
}
