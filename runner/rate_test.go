package runner_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// However jobs of a lane with a rate start, they are spaced by its interval.
func TestRateOfLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	const rate, jobs = 50, 30
	pgtest.Exec(t, pool, `insert into trapeze.limits (scope, name, key, rate, per, burst) values ('lane', 'default', '', $1, '1 second', 2)`, rate)
	step := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Step() == 0 {
			return runner.Then(rawArgs("k")), nil
		}
		return nil, nil
	}
	var pods []*runner.Runner
	for i := range 2 {
		pods = append(pods, start(t, pool, runner.Options{PodName: fmt.Sprint("pod-", i), PollInterval: seldom}, map[string]handler{"k": step}))
	}
	var ids []int64
	for i := range jobs / 3 {
		ids = append(ids, enqueue(t, pods[i%2], rawArgs("k")))
	}
	made, err := pods[0].EnqueueMany(t.Context(), []job.Args{rawArgs("k"), rawArgs("k"), rawArgs("k"), rawArgs("k"), rawArgs("k")})
	is.NoErr(err)
	for _, id := range append(ids, made...) {
		is.Equal(waitPipeline(t, pool, id), "succeeded")
	}
	starts := column[time.Time](t, pool, `select started_at from trapeze.done order by started_at`)
	is.Equal(len(starts), jobs)
	took, least := starts[jobs-1].Sub(starts[0]), (jobs-2)*time.Second/rate
	if took < least-time.Second/rate {
		t.Errorf("%d jobs started within %s, want at least %s", jobs, took, least)
	}
}

// A handler whose service is overloaded holds the other jobs of its key or lane, at once on its own pod: no notification reaches this one.
func TestRetryAfterHoldsOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hold  job.Hold
		key   string // of the other job
		waits bool
	}{
		{runner.ForKey, "a", true},
		{runner.ForKey, "b", false},
		{runner.ForLane, "b", true},
	} {
		t.Run(string(c.hold)+" "+c.key, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			const wait = 2 * time.Second
			var failed atomic.Bool
			r := start(t, pool, runner.Options{Slots: 1, PollInterval: seldom, HeartbeatInterval: seldom / 4, LeaseDuration: seldom, DirectURL: "off"}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
				if j.Key() == "a" && !failed.Swap(true) {
					return nil, runner.RetryAfter(wait, errors.New("too many requests"), c.hold)
				}
				return nil, nil
			}})
			first := enqueue(t, r, rawArgs("k"), runner.Key("a"))
			pgtest.Wait(t, "the first attempt", func() bool { return get(t, r, first).Attempt == 1 && get(t, r, first).State == job.Pending })
			other := enqueue(t, r, rawArgs("k"), runner.Key(c.key))
			is.Equal(waitEnded(t, r, first).State, job.Succeeded)
			is.Equal(waitEnded(t, r, other).State, job.Succeeded)
			waited := get(t, r, other).StartedAt.Sub(get(t, r, other).CreatedAt)
			is.Equal(waited > wait/2, c.waits)
		})
	}
}

// While no start is free, a job of the lane starts neither on insert nor as a next step from another lane.
func TestNoStartBeforeRate(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	pgtest.Exec(t, pool, `insert into trapeze.lanes (name) values ('rated')`)
	pgtest.Exec(t, pool, `insert into trapeze.limits (scope, name, key, rate, per, burst, next_start) values ('lane', 'rated', '', 1, '1 hour', 1, now() + interval '1 hour')`)
	r := start(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Step() == 0 {
			return runner.Then(rawArgs("k"), runner.Lane("rated")), nil
		}
		return nil, nil
	}})
	made, err := r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("rated"))
	is.NoErr(err)
	is.Equal(made.State, job.Pending)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
	is.Equal(column[string](t, pool, `select state from trapeze.live order by id`), []string{"pending", "pending"})
}
