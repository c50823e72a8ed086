package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestWakeUpFromSubmittingProgram(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	pod, err := runner.New(pool, runner.Options{PollInterval: time.Hour})
	is.NoErr(err)
	runner.Handle(pod, func(context.Context, *runner.Job[first]) (*runner.Outcome, error) { return nil, nil })
	run(t, pod)
	submitter, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer submitter.Close()
	made, err := submitter.Enqueue(t.Context(), first{}, runner.AllowUnregistered())
	is.NoErr(err)
	is.Equal(waitEnded(t, pod, made.ID).State, job.Succeeded) // the job ends long before the next poll
}

// With onlyWoken, pods never poll during a test, so jobs start only after wake-ups. Each pod learns its place in the fleet from its
// heartbeats.
var onlyWoken = runner.Options{Slots: 1, HeartbeatInterval: 100 * time.Millisecond, LeaseDuration: time.Minute, PollInterval: time.Hour}

// All pods of the front except one are dead, but their leases have not expired yet. The delayed claim of the living pod finds the jobs.
func TestJobStartBehindDeadPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	start(t, pool, onlyWoken, map[string]handler{"k": succeed})
	exec(t, pool, `insert into trapeze.pods (id, name, version, kinds, slots, limits, lease_until)
		select gen_random_uuid(), 'dead', p.version, p.kinds, p.slots, p.limits, now() + interval '1 minute' from trapeze.pods p, generate_series(1, 7)`)
	beaten := func() (at time.Time) {
		return queryOne[time.Time](t, pool, `select lease_until from trapeze.pods where name <> 'dead'`)
	}
	since := beaten()
	pgtest.Wait(t, "two heartbeats", func() bool { return beaten().After(since.Add(150 * time.Millisecond)) })
	other := newRunner(t, pool, runner.Options{}, nil)
	for range 5 {
		id := enqueue(t, other, rawArgs("k"), runner.AllowUnregistered())
		is.Equal(waitEnded(t, other, id).State, job.Succeeded)
	}
}

// A program that only submits jobs merges wake-ups that shortly follow the first. Close sends any that are still pending.
func TestMergedWakeUpsBeforeClose(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, onlyWoken, map[string]handler{"k": succeed})
	other, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	var last int64
	for range 20 {
		last = enqueue(t, other, rawArgs("k"), runner.AllowUnregistered())
	}
	other.Close()
	is.Equal(waitEnded(t, r, last).State, job.Succeeded)
	pgtest.Wait(t, "all jobs have ended", func() bool { return queryOne[int](t, pool, `select count(*)::int from trapeze.done`) == 20 })
}
