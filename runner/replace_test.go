package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestReplaceWaitingJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	ran := make(chan string, 10)
	r := newRunner(t, pool, runner.Options{PollInterval: time.Hour}, map[string]handler{"a": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		ran <- string(j.Args.JSON)
		return nil, nil
	}})
	key := runner.Unique("k", runner.WhilePending).Replace()
	first, err := r.Enqueue(t.Context(), rawArgs("a", "1"), key)
	is.NoErr(err)
	is.Equal(first, runner.Submitted{ID: first.ID, PipelineID: first.ID, State: job.Pending})
	replaced := runner.Submitted{ID: first.ID, PipelineID: first.ID, State: job.Pending, Duplicate: true, Replaced: true}
	s, err := r.Enqueue(t.Context(), rawArgs("a", "2"), key, runner.IdempotencyKey("once"))
	is.NoErr(err)
	is.Equal(s, replaced)
	s, err = r.Enqueue(t.Context(), rawArgs("a", "3"), runner.Unique("k", runner.WhilePending))
	is.NoErr(err)
	is.True(s.ID == first.ID && s.Duplicate && !s.Replaced) // merged: this submission does not replace
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		s, err = r.EnqueueTx(t.Context(), tx, rawArgs("a", "4"), key)
		return err
	}))
	is.Equal(s, replaced)
	no := errors.New("no")
	is.True(errors.Is(r.Tx(t.Context(), func(tx pgx.Tx) error {
		_, err := r.EnqueueTx(t.Context(), tx, rawArgs("a", "5"), key)
		return errors.Join(err, no)
	}), no)) // rolled back
	s, err = r.Enqueue(t.Context(), rawArgs("a", "2"), key, runner.IdempotencyKey("once"))
	is.NoErr(err)
	is.True(s.ID == first.ID && s.Duplicate && !s.Replaced) // a repeated submission does not bring back older args
	j := get(t, r, first.ID)
	is.Equal(string(j.Args), "4")
	is.Equal(j.Replaced, 2)
	run(t, r)
	is.Equal(<-ran, "4")
	waitEnded(t, r, first.ID)
	is.Equal(len(ran), 0)
	next, err := r.Enqueue(t.Context(), rawArgs("a", "6"), key)
	is.NoErr(err)
	is.True(next.ID != first.ID && !next.Duplicate && !next.Replaced)
}

func TestReplaceBadInput(t *testing.T) {
	t.Parallel()
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"a": succeed})
	pending := runner.Unique("k", runner.WhilePending)
	for name, c := range map[string]struct {
		options []runner.EnqueueOption
		want    string
	}{
		"while active":           {[]runner.EnqueueOption{runner.Unique("k", runner.WhileActive).Replace()}, "replace needs unique while pending"},
		"no key":                 {[]runner.EnqueueOption{runner.Unique("", runner.WhilePending).Replace()}, "empty unique key"},
		"debounce of 0":          {[]runner.EnqueueOption{pending.Debounce(0, time.Minute)}, "Debounce with a wait of 0"},
		"negative debounce":      {[]runner.EnqueueOption{pending.Debounce(-time.Second, time.Minute)}, "debounce wait of -1s, want more than 0"},
		"debounce above its max": {[]runner.EnqueueOption{pending.Debounce(time.Minute, time.Second)}, "debounce max of 1s, want at least its wait of 1m0s"},
		"debounce with a delay":  {[]runner.EnqueueOption{pending.Debounce(time.Second, time.Minute), runner.Delay(time.Second)}, "debounce with a delay"},
		"throttle of 0":          {[]runner.EnqueueOption{pending.Throttle(0)}, "Throttle with an interval of 0"},
		"negative throttle":      {[]runner.EnqueueOption{pending.Throttle(-time.Second)}, "throttle of -1s, want more than 0"},
		"throttle with a delay":  {[]runner.EnqueueOption{pending.Throttle(time.Second), runner.Delay(time.Second)}, "throttle with a delay"},
		"throttle and debounce":  {[]runner.EnqueueOption{pending.Throttle(time.Second).Debounce(time.Second, time.Second)}, "throttle with debounce"},
		"throttle while active":  {[]runner.EnqueueOption{runner.Unique("k", runner.WhileActive).Throttle(time.Second)}, "replace needs unique while pending"},
		"debounce while active":  {[]runner.EnqueueOption{runner.Unique("k", runner.WhileActive).Debounce(time.Second, time.Minute)}, "replace needs unique while pending"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := r.Enqueue(t.Context(), rawArgs("a"), c.options...)
			is.True(errors.Is(err, job.ErrInvalid))
			is.True(strings.Contains(err.Error(), c.want)) // one sentence
			_, err = runner.Describe(rawArgs("a"), c.options...)
			is.True(err != nil)
		})
	}
	is := is.New(t)
	_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("a")}, pending.Replace())
	is.True(strings.Contains(err.Error(), "keys are allowed only for single jobs"))
	_, err = r.Enqueue(t.Context(), runner.Chain(rawArgs("a"), runner.With(rawArgs("a"), pending.Replace())))
	is.True(errors.Is(err, job.ErrInvalid))
}

func TestReplaceOnNextStep(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"a": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Then(rawArgs("a"), runner.Unique("k", runner.WhilePending).Replace()), nil
	}})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("a")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(*j.Error, "replace is allowed only on submissions"))
}
