package host_test

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteWorkerAssignmentAndReport(t *testing.T) {
	is := is.New(t)
	r, w := served(t, 2, runner.Options{})

	id := foreign(t, r, podtest.RawArgs("far", `{"n":1}`))
	a := w.takes(t, r)
	is.Equal(a.ID, id)
	is.Equal(a.Fence, int64(1))
	is.Equal(a.Attempt, 1)
	is.Equal(string(a.Args), `{"n":1}`)
	is.Equal(podtest.Get(t, r, id).State, job.Running) // the job was claimed and marked as running before it was sent

	duplicate, err := w.reports(t, r, a, runner.Done(map[string]int{"n": 2}), nil)
	is.NoErr(err)
	is.True(!duplicate)
	is.Equal(podtest.Get(t, r, id).State, job.Succeeded) // the report was acknowledged after the commit
	is.Equal(string(podtest.Get(t, r, id).Result), `{"n":2}`)

	duplicate, err = w.reports(t, r, a, runner.Done(map[string]int{"n": 2}), nil)
	is.NoErr(err)
	is.True(duplicate) // the same report is a duplicate
	_, err = w.reports(t, r, a, runner.Done(map[string]int{"n": 3}), nil)
	is.True(errors.Is(err, job.ErrLeaseLost)) // a report with another result is rejected
}

func TestRemoteWorkerNextStep(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{}, noKinds)
	w, other := newFar(), newFar()
	w.connect(t, r, 1, "far")
	w.keepBeating(t, r)
	first := foreign(t, r, podtest.RawArgs("far"), runner.Subject("s"))
	a := w.takes(t, r)
	other.connect(t, r, 5, "far")
	other.keepBeating(t, r)
	_, err := w.reports(t, r, a, runner.Then(podtest.RawArgs("far"), runner.AllowUnregistered()), nil)
	is.NoErr(err)
	b := w.takes(t, r)
	is.Equal(b.Path, "fast") // started as it was inserted, in the commit that ended its parent
	is.Equal(*b.ParentID, first)
	is.Equal(b.Subject, "s")
	_, err = w.reports(t, r, b, nil, nil)
	is.NoErr(err)
	is.Equal(podtest.Get(t, r, b.ID).State, job.Succeeded)
}

func TestRemoteWorkerFreeSlots(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{}, noKinds)
	for range 10 {
		foreign(t, r, podtest.RawArgs("far"))
	}
	w := newFar()
	w.connect(t, r, 3, "far")
	w.keepBeating(t, r)
	var list []engine.Assignment
	for range 3 {
		list = append(list, w.takes(t, r))
	}
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running'`), 3)
	is.Equal(len(w.sent), 0) // no jobs are queued beyond its slots
	_, err := w.reports(t, r, list[0], nil, nil)
	is.NoErr(err)
	w.takes(t, r)
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running'`), 3)
}

func TestUnacknowledgedRemoteJobs(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	id := foreign(t, r, podtest.RawArgs("far"))
	lost := <-w.sent // never listed in a heartbeat
	j := podtest.InState(t, r, id, job.Pending)
	is.Equal(j.Attempt, 0) // the undelivered job does not count as an attempt
	is.Equal(j.Crashes, 0)

	w.connect(t, r, 1, "far")
	a := w.takes(t, r)
	is.Equal(a.ID, id)
	is.Equal(a.Attempt, 1)
	is.True(a.Fence > lost.Fence) // the first claim can no longer end the job
	_, err := w.reports(t, r, lost, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost))
	_, err = w.reports(t, r, a, nil, nil)
	is.NoErr(err)
}

func TestSilentRemoteWorkerTakeover(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseDuration: time.Second, HeartbeatInterval: 100 * time.Millisecond}
	r := podtest.Start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	id := foreign(t, r, podtest.RawArgs("far"))
	old := w.takes(t, r) // from now on, this worker is frozen
	second := newFar()
	second.connect(t, r, 1, "far")
	second.keepBeating(t, r)
	a := second.takes(t, r)
	is.Equal(a.ID, id)
	is.Equal(a.Crashes, 1) // a worker's crash counts like a pod's crash
	_, err := w.reports(t, r, old, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost)) // the frozen worker's report arrives too late
	pgtest.Wait(t, "the worker is told to restart", func() bool {
		_, err = hostOf(r).Heartbeat(t.Context(), w.id, owner, host.Beat{})
		return errors.Is(err, host.ErrClosed)
	})
	_, err = second.reports(t, r, a, nil, nil)
	is.NoErr(err)
}

func TestRemoteWorkerReportsForeignJob(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, noKinds)
	w, other := newFar(), newFar()
	w.connect(t, r, 1, "far")
	w.keepBeating(t, r)
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	other.connect(t, r, 1, "none")
	_, err := other.reports(t, r, a, nil, nil)
	is.True(errors.Is(err, host.ErrWrongToken)) // a token is valid for one worker only
	_, err = hostOf(r).Report(t.Context(), w.id, "somebody", host.Report{Claim: claimOf(a)})
	is.True(errors.Is(err, host.ErrClosed)) // a worker belongs to one principal
	_, err = hostOf(r).Heartbeat(t.Context(), w.id, "somebody", host.Beat{})
	is.True(errors.Is(err, host.ErrClosed))
	_, err = hostOf(r).Receive(t.Context(), host.Options{ID: w.id, Owner: "somebody", Slots: 1, Kinds: []engine.RemoteKind{{Name: "far"}}, Send: func(engine.Assignment) error { return nil }})
	is.True(errors.Is(err, host.ErrClosed))
	forged := a
	forged.Token = append([]byte{}, a.Token...)
	forged.Token[0] ^= 1
	_, err = w.reports(t, r, forged, nil, nil)
	is.True(errors.Is(err, host.ErrWrongToken))
	is.Equal(podtest.Get(t, r, a.ID).State, job.Running)
}

func TestRemoteCancelAndStop(t *testing.T) {
	is := is.New(t)
	r, w := served(t, 2, runner.Options{})
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	_, err := r.Admin("ops").Cancel(t.Context(), a.ID)
	is.NoErr(err)
	pgtest.Wait(t, "the heartbeat reports the cancellation", func() bool { return errors.Is(w.beats(t, r)[a.ID].Cause, job.ErrCancelled) })
	_, err = w.reports(t, r, a, nil, errors.New("ended early"))
	is.NoErr(err)
	is.Equal(podtest.Get(t, r, a.ID).State, job.Cancelled)

	foreign(t, r, podtest.RawArgs("far"))
	b := w.takes(t, r)
	_, err = r.Admin("ops").ForceCancel(t.Context(), b.ID)
	is.NoErr(err)
	is.Equal(podtest.Get(t, r, b.ID).State, job.Cancelled)
	is.True(w.beats(t, r)[b.ID].Lost) // the worker no longer holds it
	_, err = w.reports(t, r, b, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost))
}
