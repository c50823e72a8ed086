//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestUnreadableQueueState(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `delete from trapeze.queue_state`)
	idle := newRunner(t, pool, runner.Options{}, nil)
	operator := idle.Admin("ann")
	r := newRunner(t, pool, runner.Options{PollInterval: 100 * time.Millisecond, LeaseDuration: time.Minute}, map[string]handler{"k": succeed})
	stop := run(t, r)
	s, err := r.Enqueue(t.Context(), rawArgs("k"))
	is.NoErr(err)
	is.Equal(s.State, job.Pending) // an unknown queue state counts as closed
	now, err := operator.Status(t.Context())
	is.NoErr(err)
	is.True(now.Queue.Paused)
	_, err = operator.Resume(t.Context())
	is.NoErr(err)
	is.Equal(waitEnded(t, r, s.ID).State, job.Succeeded)
	stop() // otherwise, this pod would run the jobs meant for the other one

	// While a pod cannot reach the database, the last known queue state stays in force.
	wait, open := latch(t)
	proxy, proxied := cable(t, url)
	cut := start(t, proxied, runner.Options{LeaseDuration: time.Minute}, map[string]handler{"w": waitOn(wait), "k": succeed})
	runs := enqueueStarted(t, cut, rawArgs("w"))
	_, err = operator.Pause(t.Context())
	is.NoErr(err)
	heartbeats(t, pool, cut, 2) // the pod has then applied the pause
	waits, err := cut.Enqueue(t.Context(), rawArgs("k"))
	is.NoErr(err)
	is.Equal(waits.State, job.Pending)
	fails := metricValue(t, cut, "trapeze_db_errors_total")
	proxy.Blackhole()
	proxy.Reset()
	pgtest.Wait(t, "two statements fail", func() bool { return metricValue(t, cut, "trapeze_db_errors_total") >= fails+2 })
	proxy.Pass()
	open()
	is.Equal(waitEnded(t, idle, runs).State, job.Succeeded)
	is.Equal(get(t, idle, waits.ID).State, job.Pending) // no more jobs were started
	_, err = operator.Resume(t.Context())
	is.NoErr(err)
	quiet(t, pool)
}
