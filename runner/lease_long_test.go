//go:build long

package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestHeartbeatDuringTableLock(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	r := start(t, cut, named("a"), map[string]handler{"fine": succeed})
	b := start(t, direct, named("b"), nil)
	podID := r.Boot()
	tx, err := direct.Begin(t.Context())
	is.NoErr(err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	_, err = tx.Exec(t.Context(), `lock table trapeze.live in access exclusive mode`)
	is.NoErr(err)
	pgtest.Wait(t, "a's claim is waiting for the lock", func() bool {
		return queryOne[bool](t, direct, `select exists (select from pg_locks where not granted
			and database = (select oid from pg_database where datname = current_database()))`)
	})
	proxy.Reset()                  // the outcome of a's claim is unknown
	time.Sleep(3 * short.LeaseFor) // there is no event to wait for when nothing happens
	is.Equal(r.Boot(), podID)
	ready, _ := r.Ready()
	is.True(ready) // the pod's lease has not expired
	is.NoErr(tx.Rollback(t.Context()))
	is.Equal(waitEnded(t, b, enqueue(t, r, rawArgs("fine"))).State, job.Succeeded)
}
