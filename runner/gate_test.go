package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestClaimQueriesWhileQueueClosed(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool, claims := counted(t, url)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{PollInterval: 100 * time.Millisecond, TraceQueries: true}, map[string]handler{"k": waitOn(wait)})
	runs := enqueueStarted(t, r, rawArgs("k"))
	q, err := r.Admin("ann").Freeze(t.Context(), 500*time.Millisecond)
	is.NoErr(err)
	is.True(q.TimedOut)
	_, err = r.Admin("ann").Pause(t.Context())
	is.NoErr(err)
	for range 3 {
		enqueue(t, r, rawArgs("k"))
	}
	before := claims.Claims.Load()
	is.True(before > 0)                // claims are counted
	time.Sleep(500 * time.Millisecond) // long enough for five polls; there is no event to wait for when nothing happens
	is.Equal(claims.Claims.Load(), before)
	open()
	is.Equal(waitEnded(t, r, runs).State, job.Succeeded) // running jobs are unaffected
	_, err = r.Admin("ann").Unfreeze(t.Context())
	is.NoErr(err)
	time.Sleep(300 * time.Millisecond)
	is.Equal(claims.Claims.Load(), before) // the queue is still paused

	restarted := start(t, pgtest.Connect(t, url), runner.Options{PollInterval: 100 * time.Millisecond}, map[string]handler{"k": succeed})
	s, err := restarted.Enqueue(t.Context(), rawArgs("k"))
	is.NoErr(err)
	is.Equal(s.State, job.Pending) // the pause still applies after a restart
	_, err = restarted.Admin("ann").Resume(t.Context())
	is.NoErr(err)
	quiet(t, pool)
	is.True(claims.Claims.Load() >= before)
}
