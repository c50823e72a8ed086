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

func TestALimitOfALaneIsChangedLive(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name) values ('l')`)
	wait, open := gate(t)
	var c crowd
	pods := fleet(t, url, 2, runner.Options{Slots: 4, PollEvery: 200 * time.Millisecond}, map[string]does{
		"k": c.handler(5 * time.Millisecond),
		"long": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-wait:
			case <-ctx.Done():
			}
			return nil, nil
		},
	})
	limit := func(n any) {
		exec(t, pool, `update trapeze.lanes set slots = $1 where name = 'l'`, n)
		beats := one[time.Time](t, pool, `select now()`)
		pgtest.Wait(t, "every pod has applied the change", func() bool { // each lease has been renewed twice since the change
			return one[bool](t, pool, `select bool_and(lease_until > $1::timestamptz + interval '8.5 seconds') from trapeze.pods`, beats)
		})
	}
	for range 3 {
		begun(t, pods[0], of("long"), runner.Lane("l"))
	}
	limit(2) // the three running jobs continue, and no other job starts
	waits := enqueue(t, pods[1], of("k"), runner.Lane("l"))
	is.True(!c.runsWithin(700 * time.Millisecond))
	open()
	is.Equal(ended(t, pods[1], waits).State, job.Succeeded)
	limit(0)
	waits = enqueue(t, pods[1], of("k"), runner.Lane("l"))
	before := c.all.Load()
	_ = pause(t.Context(), 700*time.Millisecond)
	is.Equal(c.all.Load(), before)
	limit(nil)
	is.Equal(ended(t, pods[1], waits).State, job.Succeeded)
	for i := range 50 {
		enqueue(t, pods[i%2], of("k"), runner.Lane("l"))
	}
	quiet(t, pool)
	accounted(t, pool)
}
