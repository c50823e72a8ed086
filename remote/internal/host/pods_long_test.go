//go:build long

package host_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteWorkerChangesPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseDuration: 2 * time.Second, HeartbeatInterval: 100 * time.Millisecond}
	first, second := podtest.Start(t, pool, o, noKinds), podtest.Start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, first, 2, "far")
	id := foreign(t, first, podtest.RawArgs("far"))
	a := w.takes(t, first)
	w.cut()
	w.connect(t, second, 2, "far")
	stop := w.keepBeating(t, second)
	select {
	case <-w.sent:
		t.Fatal("the worker was sent a job that it already runs")
	case <-time.After(3 * time.Second): // longer than a lease
	}
	is.Equal(podtest.Get(t, second, id).Fence, a.Fence) // the worker still holds the same claim
	duplicate, err := w.reports(t, second, a, runner.Then(podtest.RawArgs("far"), runner.AllowUnregistered()), nil)
	is.NoErr(err)
	is.True(!duplicate)
	b := w.takes(t, second)
	is.Equal(b.Path, "fast") // the pod that took over the worker assigns the next step directly, as the first pod would have done
	stop()
	w.keepBeating(t, first) // the first pod has no stream to the worker, so it renews the lease in the table
	pgtest.Wait(t, "heartbeats to another pod renew the lease", func() bool {
		return pgtest.QueryOne[bool](t, pool, `select now() - claimed_at > interval '3 seconds' from trapeze.live where id = $1`, b.ID)
	})
	is.Equal(podtest.Get(t, second, b.ID).Crashes, 0)
	duplicate, err = w.reports(t, first, b, runner.Then(podtest.RawArgs("far"), runner.AllowUnregistered()), nil) // that pod accepts reports, too
	is.NoErr(err)
	is.True(!duplicate)
	is.Equal(podtest.Get(t, first, b.ID).State, job.Succeeded)
	w.takes(t, first)
}
