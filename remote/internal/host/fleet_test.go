package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteHandlersClaimMissing(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, w := served(t, 1, runner.Options{LeaseDuration: time.Minute})
	pool := inside.Of(r).Store.Pool()
	id := foreign(t, r, podtest.RawArgs("far"))
	first := w.takes(t, r)
	pgtest.Exec(t, pool, podtest.TakesClaim, id)
	pgtest.Wait(t, "the worker is notified", func() bool {
		verdict, listed := w.beats(t, r)[id]
		return listed && verdict.Lost && errors.Is(verdict.Cause, job.ErrLeaseLost)
	})
	w.mu.Lock()
	delete(w.runs, id)
	w.mu.Unlock()
	again := w.takes(t, r) // in the worker's only slot
	is.True(again.Fence > first.Fence)
	_, err := w.reports(t, r, again, runner.Done("accepted"), nil)
	is.NoErr(err)
	is.Equal(string(podtest.WaitEnded(t, r, id).Result), `"accepted"`)
}

func TestEndCountOfRemoteJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	a, b := podtest.Start(t, pool, runner.Options{PodName: "a"}, noKinds), podtest.Start(t, pool, runner.Options{PodName: "b"}, noKinds)
	w := newFar()
	w.connect(t, a, 1, "far")
	w.keepBeating(t, a)
	id := foreign(t, a, podtest.RawArgs("far"))
	claim := w.takes(t, a)
	_, err := w.reports(t, b, claim, runner.Done(1), nil) // although pod a serves the stream
	is.NoErr(err)
	podtest.WaitEnded(t, a, id)
	_, err = w.reports(t, a, claim, runner.Done(1), nil) // the repeated report finds the job finished
	is.NoErr(err)
	podtest.AllCounted(t, pool, a, b)
	is.Equal(podtest.Finished(t, b), map[podtest.End]int{{"", "far", "succeeded"}: 1})
}

func TestReportedRemoteErrorClass(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, w := served(t, 1, runner.Options{})
	for _, c := range []struct{ class, code, want, wantCode string }{
		{"panic", "", "panic", ""}, {"database", "23505", "database", "23505"}, {"error", "card_declined", "error", "card_declined"},
		{"", "", "error", ""},                     // as sent by an earlier version
		{"crash_limit", "a\x00b", "error", "a_b"}, // a class that only a pod can assign
	} {
		id := foreign(t, r, podtest.RawArgs("far"))
		a := w.takes(t, r)
		_, err := hostOf(r).Report(t.Context(), w.id, owner, host.Report{Claim: claimOf(a), Err: errors.New("no"), Class: job.ErrorClass(c.class), Code: c.code})
		is.NoErr(err)
		w.mu.Lock()
		delete(w.runs, a.ID)
		w.mu.Unlock()
		j := podtest.WaitEnded(t, r, id)
		is.Equal(string(*j.ErrorClass), c.want)
		is.Equal(podtest.Deref(j.ErrorCode), c.wantCode)
	}
}
