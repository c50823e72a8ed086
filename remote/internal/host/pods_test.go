package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestReportPoliciesOnOtherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.open(t, first, 1, engine.RemoteKind{Name: "far", MaxAttempts: 3, Backoff: &runner.Backoff{Base: time.Hour, Cap: time.Hour}})
	w.keepBeating(t, first)
	id := foreign(t, first, podtest.RawArgs("far"))
	a := w.takes(t, first)
	_, err := w.reports(t, second, a, nil, errors.New("it was not its day"))
	is.NoErr(err)
	j := podtest.Get(t, second, id)
	is.Equal(j.State, job.Pending)                                                                                                    // two attempts are left according to the worker's options for the kind
	is.True(pgtest.QueryOne[bool](t, pool, `select run_after > now() + interval '40 minutes' from trapeze.parked where id = $1`, id)) // the worker's backoff applies
}

func TestRemoteMaxAttemptsAndBackoff(t *testing.T) {
	is := is.New(t)
	hours := runner.Backoff{Base: time.Hour, Cap: time.Hour}
	for _, c := range []struct {
		onPod    runner.HandleOption
		onWorker engine.RemoteKind
	}{
		{runner.Retry(1, hours), engine.RemoteKind{Name: "far", MaxAttempts: 3}},
		{runner.Retry(3), engine.RemoteKind{Name: "far", Backoff: &hours}},
	} {
		pool := pgtest.Pool(t)
		r := podtest.Start(t, pool, runner.Options{Kinds: []string{"local"}}, map[string]does{"local": podtest.Succeed, "far": podtest.Succeed}, c.onPod)
		w := newFar()
		w.open(t, r, 1, c.onWorker)
		w.keepBeating(t, r)
		id := podtest.Enqueue(t, r, podtest.RawArgs("far"))
		_, err := w.reports(t, r, w.takes(t, r), nil, errors.New("it was not its day"))
		is.NoErr(err)
		is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.parked where id = $1 and run_after > now() + interval '40 minutes'`, id), 1)
	}
}

// A stopped job ends immediately, but its handler may keep running. Even a pod that did not send the job must treat the handler's slot as
// occupied.
func TestSlotOfJobStoppedElsewhere(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseDuration: 2 * time.Second, HeartbeatInterval: 100 * time.Millisecond}
	first, second := podtest.Start(t, pool, o, noKinds), podtest.Start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	foreign(t, first, podtest.RawArgs("far"))
	stopped := w.takes(t, first)
	w.cut()
	_, err := first.Admin("kim").ForceCancel(t.Context(), stopped.ID)
	is.NoErr(err)
	w.connect(t, second, 1, "far")
	w.keepBeating(t, second)
	next := foreign(t, second, podtest.RawArgs("far"))
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
