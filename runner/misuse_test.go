package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestOptionsThatCannotBeAreRefusedByName(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for says, o := range map[string]runner.Options{
		"slots: 1000000, want 1 to 10000": {Slots: 1_000_000},
		"slots: -1, want 1 to 10000":      {Slots: -1},
		"direct URL: ":                    {DirectURL: "postgres://host:port/db"},
	} {
		t.Run(says, func(t *testing.T) {
			is := is.New(t)
			_, err := runner.New(pool, o)
			is.True(err != nil && strings.Contains(err.Error(), says))
		})
	}
}

func TestHandlersThatCannotBeAreRefusedWhenTheyAreRegistered(t *testing.T) {
	t.Parallel()
	r := make1(t, pgtest.Pool(t), runner.Options{}, nil)
	handler := func(context.Context, *raw) (*runner.Outcome, error) { return nil, nil }
	for says, option := range map[string]runner.HandleOption{
		"Retry(-1), want at least one try":     runner.Retry(-1, job.Backoff{}),
		"Retry(0), want at least one try":      runner.Retry(0, job.Backoff{}),
		"Timeout(-1s), want 0 or more":         runner.Timeout(-time.Second),
		"StaleAfter(-1s), want 0 or more":      runner.StaleAfter(-time.Second),
		"MaxCrashes(0), want at least 1":       runner.MaxCrashes(0),
		`the handler of kind "misused" is nil`: nil,
	} {
		t.Run(says, func(t *testing.T) {
			is := is.New(t)
			defer func() { is.True(strings.Contains(fmt.Sprint(recover()), says)) }()
			if option == nil {
				runner.HandleRaw(r, "misused", nil)
			}
			runner.HandleRaw(r, "misused", handler, option)
		})
	}
	defer func() {
		is.New(t).True(strings.Contains(fmt.Sprint(recover()), `the handler of kind "misused" is nil`))
	}()
	runner.Handle[misused](r, nil)
}

type misused struct{}

func (misused) Kind() string { return "misused" }

func TestAnEmptyIdempotencyKeyIsRefused(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := make1(t, pool, runner.Options{}, map[string]does{"k": nothing})
	_, err := r.Enqueue(t.Context(), of("k"), runner.IdempotencyKey(""))
	is.True(errors.Is(err, job.ErrInvalid))
	is.True(strings.Contains(err.Error(), "IdempotencyKey is empty"))
	is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs`), 0)
}

// What a handler returns and cannot be fails its job at once, and says why.
func TestOutcomesThatCannotBeFailTheirJob(t *testing.T) {
	t.Parallel()
	outcomes := map[string]func() *runner.Outcome{
		"Deferred(0), want at least one part":                        func() *runner.Outcome { return runner.Deferred(0) },
		"Deferred(-1), want at least one part":                       func() *runner.Outcome { return runner.Deferred(-1) },
		"FailFast of an outcome that is neither FanOut nor Deferred": func() *runner.Outcome { return runner.Done(nil).FailFast() },
		"WithBackoff of an outcome that is not Snooze":               func() *runner.Outcome { return runner.Done(nil).WithBackoff() },
		"Join of an outcome that is neither FanOut nor Deferred":     func() *runner.Outcome { return runner.Done(nil).Join(of("k")) },
		"next step k: IdempotencyKey is empty":                       func() *runner.Outcome { return runner.Then(of("k"), runner.IdempotencyKey("")) },
	}
	said := func(t *testing.T, pool *pgxpool.Pool, o *runner.Outcome) job.Job {
		t.Helper()
		r := start(t, pool, runner.Options{MaxAttempts: 5}, map[string]does{"k": func(context.Context, *raw) (*runner.Outcome, error) { return o, nil }})
		return ended(t, r, enqueue(t, r, of("k")))
	}
	for says, outcome := range outcomes {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			j := said(t, pool, outcome())
			is.Equal(j.State, job.Failed)
			is.Equal(j.Attempt, 1) // another try would return the same
			is.True(strings.Contains(message(j), strings.TrimPrefix(says, "next step k: ")))
			is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs`), 1)
		})
	}
}

func TestEventsOfHandlersAreToldFromThoseOfTrapeze(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	errs := make(chan error, 4)
	r := start(t, pool, runner.Options{}, map[string]does{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		errs <- j.Emit(ctx, "job.succeeded", "", "", nil)
		errs <- j.Emit(ctx, "", "", "", nil)
		errs <- j.Emit(ctx, "mine", "loud", "", nil)
		errs <- j.Emit(ctx, "mine", "error", "", nil)
		return nil, nil
	}})
	id := enqueue(t, r, of("k"))
	is.Equal(ended(t, r, id).State, job.Succeeded)
	for _, says := range []string{`event "job.succeeded"`, `event ""`, `level "loud", want debug, info, warn or error`} {
		err := <-errs
		is.True(errors.Is(err, job.ErrInvalid))
		is.True(strings.Contains(err.Error(), says))
	}
	is.NoErr(<-errs)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.job_event where job = $1 and event = 'mine'`, id), 1)
}

func TestASchedulesOptionsThatContradictEachOtherAreRefused(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := make1(t, pgtest.Pool(t), runner.Options{}, map[string]does{"k": nothing})
	r.DeclareSchedule("s", "@daily", of("k"), runner.CatchUp(3), runner.SkipMissed())
	err := r.Run(t.Context())
	is.True(errors.Is(err, job.ErrInvalidSchedule))
	is.True(strings.Contains(err.Error(), "CatchUp and SkipMissed"))
}

func TestErrorsSayWhetherTheyArePermanentOrACancel(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	err := errors.New("no")
	is.True(runner.IsPermanent(fmt.Errorf("of it: %w", runner.Permanent(err))))
	is.True(!runner.IsPermanent(err))
	is.True(!runner.IsPermanent(runner.Retryable(runner.Permanent(err)))) // the outermost counts
	is.True(runner.IsCancelled(fmt.Errorf("of it: %w", runner.ErrStopped)))
	is.True(runner.IsCancelled(runner.ErrCancelled))
	is.True(!runner.IsCancelled(runner.ErrTimeout) && !runner.IsCancelled(nil))
}
