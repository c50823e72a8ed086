package host_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/remote/internal/host"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// hears sends a heartbeat to a pod and returns the pod's verdict on one job.
func (w *far) hears(t *testing.T, to *runner.Runner, id int64) host.Verdict {
	t.Helper()
	return w.beats(t, to)[id]
}

func TestJobsOfUnnoticedDepartedWorker(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	seldom := runner.Options{LeaseDuration: time.Minute, HeartbeatInterval: 20 * time.Second}
	first, second := podtest.Start(t, pool, seldom, noKinds), podtest.Start(t, pool, seldom, noKinds)
	w := newFar()
	w.connect(t, first, 2, "other") // another kind, so that this stream claims none of the jobs below
	old := w.session
	w.connect(t, second, 2, "far") // the first pod has not noticed that its connection to the worker is broken
	foreign(t, second, podtest.RawArgs("far"))
	a := w.takes(t, second)
	select {
	case <-old.Over():
		t.Fatal("the first pod already knows", old.Why())
	default:
	}
	is.True(!w.hears(t, first, a.ID).Lost) // the pod reads the job's owner from the table
	_, err := second.Admin("ops").ForceCancel(t.Context(), a.ID)
	is.NoErr(err)
	is.True(w.hears(t, first, a.ID).Lost) // according to the table, the worker no longer holds the job
}

func TestRemoteWorkerHeartbeatDuringReconnect(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{LeaseDuration: time.Minute}, noKinds)
	w := newFar()
	w.connect(t, r, 2, "far")
	foreign(t, r, podtest.RawArgs("far"))
	foreign(t, r, podtest.RawArgs("far"))
	a, b := w.takes(t, r), w.takes(t, r)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `select from trapeze.live where id = $1 for update`, a.ID)
	is.NoErr(err)
	reported := make(chan error, 1)
	go func() {
		_, err := hostOf(r).Report(context.Background(), w.id, owner, host.Report{Claim: claimOf(a)})
		reported <- err
	}()
	old, received := w.session, make(chan error, 1)
	o := host.Options{ID: w.id, Owner: owner, Kinds: []engine.RemoteKind{{Name: "far"}}, Slots: 2, Running: w.claims(),
		Send: func(engine.Assignment) error { return nil }}
	go func() {
		_, err := hostOf(r).Receive(t.Context(), o) // blocks until the previous session has ended, which waits for the job's outcome to be written
		received <- err
	}()
	<-old.Over()
	_, err = hostOf(r).Heartbeat(t.Context(), w.id, owner, host.Beat{Draining: true})
	is.NoErr(err) // the verdicts do not matter here
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for waiting := true; waiting; <-pace.C {
		select {
		case err := <-received:
			is.NoErr(err)
			waiting = false
		default:
		}
		v := w.hears(t, r, b.ID)
		is.True(!v.Lost && v.Cause == nil) // the worker holds the job throughout
	}
	is.NoErr(tx.Rollback(t.Context()))
	if err := <-reported; err != nil {
		is.True(errors.Is(err, job.ErrOutcomeUnknown)) // the previous session has given up
		_, err = w.reports(t, r, a, nil, nil)
		is.NoErr(err) // the new session has taken over this claim too
	}
	is.Equal(podtest.Get(t, r, a.ID).State, job.Succeeded)
}

func TestRemoteHandlerCancelCause(t *testing.T) {
	is := is.New(t)
	r := podtest.Start(t, pgtest.Pool(t), runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	_, err := r.Admin("ops").ForceCancel(t.Context(), a.ID)
	is.NoErr(err)
	v := w.hears(t, r, a.ID)
	is.True(v.Lost)
	is.True(errors.Is(v.Cause, job.ErrForceCancelled)) // the same cause as on a pod
}

func TestHeartbeatDuringSecondStreamOpening(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.Start(t, pool, runner.Options{LeaseDuration: time.Minute}, noKinds), podtest.Start(t, pool, runner.Options{LeaseDuration: time.Minute}, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	over := make(chan struct{})
	go func() {
		defer close(over)
		for until := time.Now().Add(reopensFor); time.Now().Before(until); {
			_, _ = hostOf(first).Receive(t.Context(), host.Options{ID: w.id, Owner: owner, Kinds: []engine.RemoteKind{{Name: "far"}}, Slots: 1,
				Send: func(engine.Assignment) error { return nil }})
		}
	}()
	for going := true; going; {
		select {
		case <-over:
			going = false
		default:
		}
		_, err := hostOf(second).Heartbeat(t.Context(), w.id, owner, host.Beat{})
		is.NoErr(err) // its row stays open throughout
	}
}
