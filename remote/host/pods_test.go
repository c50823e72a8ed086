package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/podtest"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestARemoteWorkerKeepsItsJobsOnAnotherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseFor: 2 * time.Second, HeartbeatEvery: 100 * time.Millisecond}
	first, second := podtest.Start(t, pool, o, noKinds), podtest.Start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, first, 2, "far")
	id := foreign(t, first, podtest.Of("far"))
	a := w.takes(t, first)
	w.cut()
	w.connect(t, second, 2, "far")
	stop := w.keepBeating(t, second)
	select {
	case <-w.sent:
		t.Fatal("the worker was sent a job that it already runs")
	case <-time.After(3 * time.Second): // longer than a lease
	}
	is.Equal(podtest.Get(t, second, id).Fence, a.Fence) // the claim is the same
	duplicate, err := w.reports(t, second, a, runner.Then(podtest.Of("far"), runner.Foreign()), nil)
	is.NoErr(err)
	is.True(!duplicate)
	b := w.takes(t, second)
	is.Equal(b.Path, "fast") // the pod that took over the worker assigns next steps as the first pod would
	stop()
	w.keepBeating(t, first) // the first pod has no stream to the worker, so the lease is in the table
	pgtest.Wait(t, "heartbeats to another pod renew the lease", func() bool {
		return podtest.One[bool](t, pool, `select now() - claimed_at > interval '3 seconds' from trapeze.live where id = $1`, b.ID)
	})
	is.Equal(podtest.Get(t, second, b.ID).Crashes, 0)
	duplicate, err = w.reports(t, first, b, runner.Then(podtest.Of("far"), runner.Foreign()), nil) // reports work there too
	is.NoErr(err)
	is.True(!duplicate)
	is.Equal(podtest.Get(t, first, b.ID).State, job.Succeeded)
	w.takes(t, first)
}

func TestAReportToAPodWithoutTheStreamIsSettledByThePoliciesOfTheWorker(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.open(t, first, 1, engine.RemoteKind{Name: "far", MaxAttempts: 3, Backoff: runner.Backoff{Base: time.Hour, Cap: time.Hour}})
	w.keepBeating(t, first)
	id := foreign(t, first, podtest.Of("far"))
	a := w.takes(t, first)
	_, err := w.reports(t, second, a, nil, errors.New("it was not its day"))
	is.NoErr(err)
	j := podtest.Get(t, second, id)
	is.Equal(j.State, job.Pending)                                                                                                // it has two attempts left, as set by the worker's options for the kind
	is.True(podtest.One[bool](t, pool, `select run_after > now() + interval '40 minutes' from trapeze.parked where id = $1`, id)) // the worker's backoff applies
}

// A stopped job ends immediately, but its handler may keep running. Even a pod that did not send the job must treat its slot as in use.
func TestARemoteWorkerIsSentNothingInTheSlotOfAStoppedJobOnAnotherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseFor: 2 * time.Second, HeartbeatEvery: 100 * time.Millisecond}
	first, second := podtest.Start(t, pool, o, noKinds), podtest.Start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	foreign(t, first, podtest.Of("far"))
	stopped := w.takes(t, first)
	w.cut()
	_, err := first.Admin().Stop(t.Context(), stopped.ID, "kim")
	is.NoErr(err)
	w.connect(t, second, 1, "far")
	w.keepBeating(t, second)
	next := foreign(t, second, podtest.Of("far"))
	select {
	case a := <-w.sent:
		t.Fatalf("job %d was sent while a handler used the only slot", a.ID)
	case <-time.After(time.Second): // several polls for jobs
	}
	_, err = w.reports(t, second, stopped, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost)) // its handler has returned
	w.mu.Lock()
	delete(w.runs, stopped.ID)
	w.mu.Unlock()
	is.Equal(w.takes(t, second).ID, next)
}
