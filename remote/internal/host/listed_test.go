package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestWorkerHeartbeatToOtherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	serves, other := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, serves, 1, "far")
	w.keepBeating(t, other) // all heartbeats go to the other pod, as they might behind a load balancer
	id := foreign(t, serves, podtest.RawArgs("far"))
	a := w.takes(t, other)
	is.Equal(pgtest.QueryOne[int](t, pool, `select cardinality(acknowledged) from trapeze.remote_workers`), 2)
	select {
	case <-w.session.Stopped():
		t.Fatal("the stream was closed")
	case <-time.After(2 * ackWithin): // by now, the pod that serves the stream has checked for an acknowledgement
	}
	is.Equal(podtest.Get(t, serves, id).Fence, a.Fence) // the job was not handed back either
	_, err := w.reports(t, serves, a, nil, nil)
	is.NoErr(err)
	is.Equal(podtest.Get(t, serves, id).State, job.Succeeded)
}

// A send can fail even though the job has arrived, because gRPC makes no promise about messages on a stream that breaks.
func TestJobAfterFailedSend(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	for _, through := range []string{"the pod that sent it", "another pod"} {
		serves, other := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
		w, listed := newFar(), make(chan struct{})
		w.ackWithin = time.Hour
		w.sending = func() error { <-listed; return errors.New("the stream broke") }
		w.connect(t, serves, 1, "far")
		id := foreign(t, serves, podtest.RawArgs("far"))
		heard := serves
		if through == "another pod" {
			heard = other
		}
		a := w.takes(t, heard)
		close(listed)
		<-w.session.Stopped() // nothing else is sent on this stream
		_, err := w.reports(t, serves, a, nil, nil)
		is.NoErr(err) // the claim was not handed back
		is.Equal(podtest.Get(t, serves, id).Fence, a.Fence)
		is.Equal(podtest.Get(t, serves, id).State, job.Succeeded)
	}
}

func TestJobReportedBeforeListing(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	serves, other := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, serves, 1, "far")
	foreign(t, serves, podtest.RawArgs("far"))
	a := <-w.sent // reported before any heartbeat lists it
	_, err := w.reports(t, other, a, nil, nil)
	is.NoErr(err)
	w.keepBeating(t, other)
	next := foreign(t, serves, podtest.RawArgs("far"))
	is.Equal(w.takes(t, other).ID, next) // its slot is free again
	select {
	case <-w.session.Stopped():
		t.Fatal("the stream was closed")
	default:
	}
}

func TestSlotAfterReportElsewhere(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	serves, other := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.ackWithin = time.Hour // no missing job is treated as lost during the test
	w.connect(t, serves, 1, "far")
	for range 3 {
		foreign(t, serves, podtest.RawArgs("far"))
		a := w.takes(t, serves)
		_, err := w.reports(t, other, a, nil, nil)
		is.NoErr(err)
		w.beats(t, serves)
	}
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), 3)
}

func TestNudgeForEndingRemoteHandler(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	is.Equal(len(w.nudges), 0)
	_, err := r.Admin("ops").Cancel(t.Context(), a.ID)
	is.NoErr(err)
	select {
	case <-w.nudges:
	case <-time.After(10 * time.Second):
		t.Fatal("the worker was not nudged")
	}
	is.True(errors.Is(w.beats(t, r)[a.ID].Cause, job.ErrCancelled))
}
