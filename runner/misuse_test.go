package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/scheduler"
)

func TestInvalidRunnerOptions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Unconnected(t)
	for says, o := range map[string]runner.Options{
		"slots: 1000000, want 1 to 10000": {Slots: 1_000_000},
		"slots: -1, want 1 to 10000":      {Slots: -1},
		"direct URL: ":                    {DirectURL: "postgres://host:port/db"},
		"direct URL: cannot parse":        {DirectURL: "https://host/db"},
		"middleware 1 is nil":             {Middleware: []runner.Middleware{nil}},
		"enqueue middleware 1 is nil":     {EnqueueMiddleware: []runner.EnqueueMiddleware{nil}},
	} {
		t.Run(says, func(t *testing.T) {
			is := is.New(t)
			_, err := runner.New(pool, o)
			is.True(err != nil && strings.Contains(err.Error(), says))
		})
	}
	_, err := runner.New(nil, runner.Options{})
	is.New(t).Equal(fmt.Sprint(err), "runner: the pool is nil")
}

// Each error starts with the problem and then states where it occurred.
func TestSubmissionAndSettingErrorTexts(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	operator := r.Admin("ann")
	submit := func(args job.Args, options ...runner.EnqueueOption) func() error {
		return func() error { _, err := r.Enqueue(t.Context(), args, options...); return err }
	}
	run := func(args job.Args, expression string, options ...runner.ScheduleOption) func() error {
		return func() error {
			r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
			r.DeclareSchedule("s", expression, args, options...)
			return r.Run(t.Context())
		}
	}
	for name, c := range map[string]struct {
		err  error
		call func() error
	}{
		"kind":               {job.ErrUnknownKind, submit(rawArgs("x"))},
		"kind of a step":     {job.ErrUnknownKind, submit(runner.Chain(rawArgs("k"), rawArgs("x")))},
		"kind on failure":    {job.ErrUnknownKind, submit(rawArgs("k"), runner.OnFailure(rawArgs("x")))},
		"lane":               {job.ErrUnknownLane, submit(rawArgs("k"), runner.Lane("x"))},
		"no args":            {job.ErrInvalidArgs, submit(nil)},
		"no args on failure": {job.ErrInvalidArgs, submit(rawArgs("k"), runner.OnFailure(nil))},
		"args":               {job.ErrInvalidArgs, submit(rawArgs("k", `{"a":`))},
		"size":               {job.ErrTooLarge, submit(rawArgs("k", `"`+strings.Repeat("x", 2<<20)+`"`))},
		"priority":           {job.ErrInvalid, submit(rawArgs("k"), runner.Priority(1000))},
		"priority of a step": {job.ErrInvalid, submit(runner.Chain(rawArgs("k"), runner.With(rawArgs("k"), runner.Priority(1000))))},
		"key":                {job.ErrInvalid, submit(rawArgs("k"), runner.IdempotencyKey(""))},
		"nil option":         {job.ErrInvalid, submit(rawArgs("k"), nil)},
		"keys of many": {job.ErrInvalid, func() error {
			_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("k")}, runner.IdempotencyKey("x"))
			return err
		}},
		"kind to run":         {job.ErrUnknownKind, func() error { return newRunner(t, pool, runner.Options{Kinds: []string{"x"}}, nil).Run(t.Context()) }},
		"expression":          {job.ErrInvalidSchedule, run(rawArgs("k"), "never")},
		"zone":                {job.ErrInvalidSchedule, run(rawArgs("k"), "@daily", runner.Zone("Mars"))},
		"missed fires":        {job.ErrInvalidSchedule, run(rawArgs("k"), "@daily", runner.CatchUp(0))},
		"both":                {job.ErrInvalidSchedule, run(rawArgs("k"), "@daily", runner.CatchUp(1), runner.SkipMissed())},
		"nil schedule option": {job.ErrInvalidSchedule, run(rawArgs("k"), "@daily", nil)},
		"chain of a schedule": {job.ErrInvalidSchedule, run(runner.Chain(rawArgs("k"), rawArgs("k")), "@daily")},
		"kind of a schedule":  {job.ErrUnknownKind, run(rawArgs("x"), "@daily")},
		"set expression": {job.ErrInvalidSchedule, func() error {
			_, err := operator.SetSchedule(t.Context(), "s", job.ScheduleChange{Kind: new("k"), Expression: new("never")})
			return err
		}},
		"set kind": {job.ErrInvalidSchedule, func() error {
			_, err := operator.SetSchedule(t.Context(), "s", job.ScheduleChange{Kind: new("no kind"), Expression: new("@daily")})
			return err
		}},
		"preview": {job.ErrInvalidSchedule, func() error { _, err := scheduler.Preview("never", "", time.Now(), 1); return err }},
		"set lane": {job.ErrInvalidSetting, func() error {
			_, err := operator.SetLane(t.Context(), "l", job.LaneChange{Slots: job.To(-1)})
			return err
		}},
		"set retention": {job.ErrInvalidSetting, func() error {
			_, err := operator.SetRetention(t.Context(), "k", job.Succeeded, new(-time.Second))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			err := c.call()
			is.True(errors.Is(err, c.err))
			is.True(strings.HasPrefix(err.Error(), c.err.Error()+": "))
		})
	}
}

// Run reports all wrong registrations at once, and registers none of them.
func TestInvalidHandlerRegistration(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Unconnected(t), runner.Options{}, nil)
	var says []string
	for why, option := range map[string]runner.HandleOption{
		"Retry(-1), want at least one attempt":                                      runner.Retry(-1),
		"Retry(0), want at least one attempt":                                       runner.Retry(0),
		"Retry with a back-off of -1s":                                              runner.Retry(2, job.Backoff{Base: -time.Second}),
		"Retry with 2 back-offs, want one":                                          runner.Retry(2, job.Backoff{}, job.Backoff{}),
		"Timeout(-1s), want 0 or more":                                              runner.Timeout(-time.Second),
		"InactivityTimeout(-1s), want 0 or more":                                    runner.InactivityTimeout(-time.Second),
		"MaxCrashes(0), want at least 1":                                            runner.MaxCrashes(0),
		"secret password: want a JSON pointer, such as /password or /users/*/token": runner.Secrets("password"),
		"option 1 is nil":                                                           nil,
	} {
		kind := fmt.Sprint("kind-", len(says))
		runner.HandleRaw(r, kind, succeed, option)
		says = append(says, fmt.Sprintf("invalid request: kind %q: %s", kind, why))
	}
	runner.HandleRaw(r, "raw", nil)
	runner.Handle[misused](r, nil)
	runner.HandleFunc[misused](r, nil)
	runner.HandleRaw(r, "twice", succeed)
	runner.HandleRaw(r, "twice", succeed)
	says = append(says, `the handler of kind "raw" is nil`, `the handler of kind "misused" is nil`, `kind "twice": it is registered twice`)
	err := r.Run(t.Context())
	is.True(errors.Is(err, job.ErrInvalid))
	for _, text := range says {
		is.True(strings.Contains(err.Error(), text)) // text
	}
	is.Equal(r.Kinds(), []string{"twice"})
}

type misused struct{}

func (misused) Kind() string { return "misused" }

func TestEmptyIdempotencyKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Enqueue(t.Context(), rawArgs("k"), runner.IdempotencyKey(""))
	is.True(errors.Is(err, job.ErrInvalid))
	is.True(strings.Contains(err.Error(), "IdempotencyKey is empty"))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 0)
}

// An invalid outcome fails the job immediately, with an error that states the reason.
func TestInvalidOutcome(t *testing.T) {
	t.Parallel()
	outcomes := map[string]func() *runner.Outcome{
		"Deferred(0), want at least one part":                        func() *runner.Outcome { return runner.Deferred(0) },
		"Deferred(-1), want at least one part":                       func() *runner.Outcome { return runner.Deferred(-1) },
		"FailFast on an outcome that is neither FanOut nor Deferred": func() *runner.Outcome { return runner.Done(nil).FailFast() },
		"InTx with a nil function":                                   func() *runner.Outcome { return runner.Done(nil).InTx(nil) },
		"WriteBatch with a nil batch":                                func() *runner.Outcome { return runner.Done(nil).WriteBatch(nil) },
		"WithBackoff on an outcome that is not Snooze":               func() *runner.Outcome { return runner.Done(nil).WithBackoff() },
		"Join on an outcome that is neither FanOut nor Deferred":     func() *runner.Outcome { return runner.Done(nil).Join(rawArgs("k")) },
		"next step k: IdempotencyKey is empty":                       func() *runner.Outcome { return runner.Then(rawArgs("k"), runner.IdempotencyKey("")) },
	}
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{MaxAttempts: 5}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		var says string
		err := json.Unmarshal(j.Args.JSON, &says)
		return outcomes[says](), err
	}})
	for says := range outcomes {
		t.Run(says, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs("k", strconv.Quote(says))))
			is.Equal(j.State, job.Failed)
			is.Equal(j.Attempt, 1) // the job was not retried, because the handler would return the same outcome
			is.True(strings.Contains(message(j), strings.TrimPrefix(says, "next step k: ")))
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where pipeline_id = $1`, j.ID), 1)
		})
	}
}

func TestReservedOrInvalidHandlerEvents(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	errs := make(chan error, 4)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		errs <- j.Emit(ctx, "job.succeeded", "", "", nil)
		errs <- j.Emit(ctx, "", "", "", nil)
		errs <- j.Emit(ctx, "mine", "loud", "", nil)
		errs <- j.Emit(ctx, "mine", "error", "", nil)
		return nil, nil
	}})
	id := enqueue(t, r, rawArgs("k"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	for _, says := range []string{`event "job.succeeded"`, `event ""`, `level "loud", want debug, info, warn or error`} {
		err := <-errs
		is.True(errors.Is(err, job.ErrInvalid))
		is.True(strings.Contains(err.Error(), says))
	}
	is.NoErr(<-errs)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_event where job = $1 and event = 'mine'`, id), 1)
}

func TestContradictoryScheduleOptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Unconnected(t), runner.Options{}, map[string]handler{"k": succeed})
	r.DeclareSchedule("s", "@daily", rawArgs("k"), runner.CatchUp(3), runner.SkipMissed())
	err := r.Run(t.Context())
	is.True(errors.Is(err, job.ErrInvalidSchedule))
	is.True(strings.Contains(err.Error(), "CatchUp and SkipMissed"))
}

func TestPermanentAndCancelledErrorChecks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	err := errors.New("no")
	is.True(runner.IsPermanent(fmt.Errorf("of it: %w", runner.Permanent(err))))
	is.True(!runner.IsPermanent(err))
	is.True(!runner.IsPermanent(runner.Retryable(runner.Permanent(err)))) // the outermost wrapper decides
	is.True(runner.IsCancelled(fmt.Errorf("of it: %w", runner.ErrForceCancelled)))
	is.True(runner.IsCancelled(runner.ErrCancelled))
	is.True(!runner.IsCancelled(runner.ErrTimeout) && !runner.IsCancelled(nil))
}
