//go:build long

package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// If a lane is deleted and recreated between two heartbeats, the database no longer knows which pod holds its slots. The holder must
// request them anew.
func TestRecreatedLaneWithOldHolder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('one', 1)`)
	var c crowd
	wait, open := latch(t)
	pods := startPods(t, url, 2, runner.Options{Slots: 2, DirectURL: "off"}, map[string]handler{"k": c.handler(5 * time.Millisecond), "blocks": waitOn(wait)})
	enqueueStarted(t, pods[0], rawArgs("blocks"), runner.Lane("one"))
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	for _, sql := range []string{`delete from trapeze.lanes where name = 'one'`, `insert into trapeze.lanes (name, slots) values ('one', 1)`} {
		_, err := tx.Exec(t.Context(), sql)
		is.NoErr(err)
	}
	is.NoErr(tx.Commit(t.Context()))
	pgtest.Wait(t, "the holder reports its running jobs", func() bool {
		return queryOne[int](t, pool, `select granted from trapeze.lanes where name = 'one'`) == 1
	})
	ctx := context.WithoutCancel(t.Context())
	for i := range 100 {
		_, err := pods[i%2].Enqueue(ctx, rawArgs("k"), runner.Lane("one"))
		is.NoErr(err)
	}
	is.Equal(c.all.Load(), int64(0)) // no job runs, because the lane is full
	open()
	quiet(t, pool)
	is.Equal(c.most.Load(), int64(1))
	checkSlotCounts(t, pool)
}
