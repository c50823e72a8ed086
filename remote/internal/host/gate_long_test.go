//go:build long

package host_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
)

// settled waits until a number has not changed for 700 ms, and returns it.
func settled(t *testing.T, n *atomic.Int64) int64 {
	t.Helper()
	last, since := n.Load(), time.Now()
	pgtest.Wait(t, "a number stops changing", func() bool {
		if now := n.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 700*time.Millisecond
	})
	return last
}

func TestRemoteClaimsWhileQueueClosed(t *testing.T) {
	is := is.New(t)
	url := pgtest.URL(t)
	pool, claims := podtest.Counted(t, url)
	heard := often
	heard.TraceQueries = true
	r, other := podtest.Start(t, pool, heard, noKinds), podtest.Start(t, pgtest.Connect(t, url), often, noKinds)
	time.Sleep(time.Second) // wait until both pods have prepared their connections, which also runs the claim statement
	w, late := newFar(), newFar()
	w.connect(t, r, 2, "far")
	w.keepBeating(t, r)
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	_, err := other.Admin("ops").Pause(t.Context()) // pausing the queue on one pod also affects the other
	is.NoErr(err)
	id := foreign(t, r, podtest.RawArgs("far"))
	before := settled(t, &claims.Claims) // the pod may need a moment to notice the pause, and claims in flight need a moment to finish
	is.True(before > 0)                  // the counter works
	late.connect(t, r, 2, "far")         // a worker that connects while the queue is paused
	late.keepBeating(t, r)
	time.Sleep(1200 * time.Millisecond) // long enough for each worker to poll twice; only waiting can show that nothing happens
	is.Equal(claims.Claims.Load(), before)
	_, err = w.reports(t, r, a, nil, nil)
	is.NoErr(err) // running jobs are not affected

	pgtest.Exec(t, pool, `delete from trapeze.queue_state`)
	third := newFar()
	third.connect(t, r, 2, "far")
	third.keepBeating(t, r)
	time.Sleep(700 * time.Millisecond)
	is.Equal(claims.Claims.Load(), before) // an unknown queue state counts as paused
	_, err = other.Admin("ops").Resume(t.Context())
	is.NoErr(err)
	select {
	case a = <-w.sent:
	case a = <-late.sent:
	case a = <-third.sent:
	case <-time.After(time.Minute):
		t.Fatal("no worker was sent the job")
	}
	is.Equal(a.ID, id)
}
