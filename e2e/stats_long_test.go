//go:build long

package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// A killed pod has already written the counts of all minutes except the last.
func TestStatsAfterPodKill(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pool := pgtest.Connect(t, db.url)
	p := serve(t, db.url, nil)
	end := func(n int) {
		t.Helper()
		for range n {
			db.enqueue("demo.noop", "--wait")
		}
	}
	if left := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)); left < 20*time.Second {
		end(1) // the first jobs must all end within one minute
		pgtest.WaitFor(t, time.Minute, "the minute is over", func() bool {
			return pgtest.QueryOne[int](t, pool, `select count(*)::int from trapeze.stats`) > 0
		})
	}
	end(5)
	before := pgtest.QueryOne[time.Time](t, pool, `select date_trunc('minute', now())`)
	written := func() int {
		return pgtest.QueryOne[int](t, pool, `select coalesce(sum(jobs), 0)::int from trapeze.stats where at <= $1`, before)
	}
	want := pgtest.QueryOne[int](t, pool, `select count(*)::int from trapeze.done`)
	pgtest.WaitFor(t, 70*time.Second, "the pod has written the minute", func() bool { return written() == want })
	end(3)
	p.signal(syscall.SIGKILL)
	p.end()
	s := decoded[job.Stats](t, db.ok("stats", "--json"))
	is.Equal(fmt.Sprint(s.Total.Finished), fmt.Sprint(want)) // the last three jobs' counts are lost
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*)::int from trapeze.done`), want+3)
}
