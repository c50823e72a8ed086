//go:build long

package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestHeartbeatDuringTableLock(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	r := start(t, cut, named("a"), map[string]handler{"fine": succeed})
	b := start(t, direct, named("b"), nil)
	podID := r.PodID()
	tx, err := direct.Begin(t.Context())
	is.NoErr(err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	_, err = tx.Exec(t.Context(), `lock table trapeze.live in access exclusive mode`)
	is.NoErr(err)
	pgtest.Wait(t, "a's claim is waiting for the lock", func() bool {
		return queryOne[bool](t, direct, `select exists (select from pg_locks where not granted
			and database = (select oid from pg_database where datname = current_database()))`)
	})
	proxy.Reset()                       // the outcome of a's claim is unknown
	time.Sleep(3 * short.LeaseDuration) // there is no event to wait for when nothing happens
	is.Equal(r.PodID(), podID)
	ready, _ := r.Ready()
	is.True(ready) // the pod's lease has not expired
	is.NoErr(tx.Rollback(t.Context()))
	is.Equal(waitEnded(t, b, enqueue(t, r, rawArgs("fine"))).State, job.Succeeded)
}

func TestSingleMissedHeartbeat(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	wait, open := latch(t)
	o := named("a")
	o.LeaseDuration, o.HeartbeatInterval = 3*time.Second, 500*time.Millisecond
	r := start(t, cut, o, map[string]handler{"wait": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-wait:
			return nil, nil
		}
	}})
	b := start(t, direct, o, nil)
	id := enqueueStarted(t, r, rawArgs("wait"))
	podID := r.PodID()
	proxy.Stall() // every connection hangs without reporting an error
	fails := metricValue(t, r, "trapeze_db_errors_total")
	pgtest.Wait(t, "a heartbeat fails", func() bool { return metricValue(t, r, "trapeze_db_errors_total") > fails })
	pgtest.Wait(t, "a whole lease passes", func() bool {
		return queryOne[bool](t, direct, `select exists (select from trapeze.live where id = $1 and claimed_at < now() - interval '4 seconds')`, id)
	})
	j := get(t, b, id)
	is.Equal(j.State, job.Running) // the next heartbeat used a new connection in time
	is.Equal(j.Fence, int64(1))
	is.Equal(r.PodID(), podID)
	proxy.Reset()
	open()
	is.Equal(waitEnded(t, b, id).State, job.Succeeded)
}
