package runner_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRunningHandlerClaimMissing(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	causes := make(chan error, 10)
	var log podtest.Log
	r := start(t, pool, runner.Options{Logger: log.Logger(), Slots: 1, LeaseDuration: time.Minute, PollInterval: 200 * time.Millisecond}, map[string]handler{
		"lost": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Fence() == 1 {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return runner.Then(rawArgs("next")).Result("refused"), nil
			}
			return runner.Done("accepted"), nil
		},
		"next": succeed,
	})
	id := enqueueStarted(t, r, rawArgs("lost"))
	exec(t, pool, takesClaim, id)
	is.True(errors.Is(soonest(t, causes), job.ErrLeaseLost)) // even though every heartbeat succeeded
	j := waitEnded(t, r, id)                                 // the retry uses the pod's only slot
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), `"accepted"`)
	is.Equal(j.Attempt, 1)
	is.Equal(metricValue(t, r, "trapeze_stale_writes_rejected_total"), 1.0)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'next'`), 0)
	is.Equal(log.Count("cancelled handlers without a claim in the table"), 1)
}

// When an operator stops a job, the handler's context is cancelled with ErrForceCancelled, even if the pod compares its handlers with the table
// immediately afterwards.
func TestStopCauseAfterOperatorStop(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	const jobs = 10
	causes := make(chan error, jobs)
	o := runner.Options{Slots: jobs, HeartbeatInterval: 10 * time.Millisecond, LeaseDuration: time.Minute}
	r := start(t, pool, o, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, nil
	}})
	operator := newRunner(t, pool, runner.Options{}, nil)
	for range jobs {
		id := enqueueStarted(t, r, rawArgs("k"))
		_, err := operator.Admin("ann").ForceCancel(t.Context(), id)
		is.NoErr(err)
		is.True(errors.Is(soonest(t, causes), job.ErrForceCancelled))
	}
}

// soonest returns the next value from a channel, or fails the test after a timeout.
func soonest[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("received nothing within 20s")
	}
	return v
}

// claimUnknown creates a job that, according to the table, a pod has claimed, but that the pod does not know about. This happens if the
// reply to a claim, or the commit of a job's end, is lost.
func claimUnknown(t *testing.T, by *runner.Runner, podID string) (id int64) {
	t.Helper()
	id = enqueue(t, by, rawArgs("unknown"), runner.AllowUnregistered())
	found, err := inside.Of(by).Store.Claim(t.Context(), podID, []store.Want{{Lane: "default", N: 1}}, []string{"unknown"}, nil, true)
	if err != nil || len(found.Jobs) != 1 || found.Jobs[0].ID != id {
		t.Fatal(found, err)
	}
	return id
}

func TestUnknownClaimAfterFailedHeartbeat(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := newRunner(t, pgtest.Connect(t, url), runner.Options{}, nil)
	proxy, cut := cable(t, url)
	o := named("a")
	o.LeaseDuration = time.Minute
	r := start(t, cut, o, map[string]handler{"k": succeed})
	id := claimUnknown(t, direct, r.PodID())
	fails := metricValue(t, r, "trapeze_db_errors_total")
	proxy.Refuse()
	proxy.Reset()
	pgtest.Wait(t, "a heartbeat fails", func() bool { return metricValue(t, r, "trapeze_db_errors_total") > fails })
	time.Sleep(2 * o.HeartbeatInterval) // the immediate retry must fail too
	is.Equal(get(t, direct, id).State, job.Running)
	proxy.Pass()
	pgtest.WaitFor(t, 20*time.Second, "the job waits again", func() bool { return get(t, direct, id).State == job.Pending })
	is.True(slices.Contains(eventsOf(t, direct, id), "job.handed_back"))
	is.Equal(get(t, direct, id).Attempt, 0) // the claim did not count as an attempt
}
