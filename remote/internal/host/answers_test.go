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

func TestReportOfJobRunningAgain(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{LeaseDuration: time.Minute, HeartbeatInterval: 20 * time.Second}, noKinds)
	w := newFar()
	w.open(t, r, 1, engine.RemoteKind{Name: "far", MaxAttempts: 2})
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `lock table trapeze.fan_outs in access exclusive mode`) // delays the query that reads back a job's outcome
	is.NoErr(err)
	reported := make(chan error, 1)
	go func() {
		_, err := hostOf(r).Report(context.Background(), w.id, owner, host.Report{Claim: claimOf(a), Err: job.RetryAfter(0, errors.New("once more"))})
		reported <- err
	}()
	select {
	case b := <-w.sent:
		is.Equal(b.Fence, a.Fence+1) // the next attempt has started
	case <-time.After(10 * time.Second):
		t.Fatal("no job was sent")
	}
	is.NoErr(tx.Rollback(t.Context()))
	is.NoErr(<-reported)
}

func TestJobTimeoutAcrossWorkerStreams(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	hour := time.Hour
	w.open(t, r, 1, engine.RemoteKind{Name: "far", Timeout: &hour})
	w.keepBeating(t, r)
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	w.cut()
	pgtest.Exec(t, pool, `update trapeze.live set claimed_at = claimed_at - interval '2 hours'`) // as if it had been running for two hours
	w.open(t, r, 1, engine.RemoteKind{Name: "far", Timeout: &hour})
	pgtest.Wait(t, "its timeout has expired", func() bool { return errors.Is(w.beats(t, r)[a.ID].Cause, job.ErrTimeout) })
	_, err := w.reports(t, r, a, nil, errors.New("ended early"))
	is.NoErr(err)
	is.Equal(podtest.ReasonOf(podtest.Get(t, r, a.ID)), job.ReasonTimeout)
}

func TestReportedKindOnOtherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far", "next")
	w.keepBeating(t, first)
	id := foreign(t, first, podtest.RawArgs("far"))
	_, err := w.reports(t, second, w.takes(t, first), runner.Then(podtest.RawArgs("next")), nil)
	is.NoErr(err)
	j := podtest.Get(t, second, id)
	is.Equal(podtest.Message(j), "")
	is.Equal(j.State, job.Succeeded) // as if reported to the pod that serves the stream
	is.Equal(w.takes(t, first).Kind, "next")
}

func TestConflictingResultOnStreamPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseDuration: time.Minute, HeartbeatInterval: 20 * time.Second}
	first, second := podtest.Start(t, pool, o, noKinds), podtest.Start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	foreign(t, first, podtest.RawArgs("far"))
	a := w.takes(t, first)
	_, err := w.reports(t, second, a, runner.Done(1), nil)
	is.NoErr(err)
	_, err = w.reports(t, first, a, runner.Done(2), nil)
	is.True(errors.Is(err, job.ErrLeaseLost))
	_, err = w.reports(t, first, a, runner.Done(1), nil)
	is.NoErr(err) // the accepted result, reported again
	is.Equal(string(podtest.Get(t, first, a.ID).Result), "1")
}
