package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Three hundred schedules are due at one moment: each fires, on time, and the pods keep their leases meanwhile.
func TestManySchedulesAtOneMomentAllFire(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const many = 300
	pool := pgtest.Pool(t)
	start(t, pool, runner.Options{Slots: 16}, map[string]does{"k": nothing})
	exec(t, pool, `insert into trapeze.schedules (name, expression, kind, planned, next_at, anchor)
		select 's' || n, '0 0 1 1 *', 'k', true, date_trunc('year', now()), date_trunc('year', now()) - interval '1 day' from generate_series(1, $1::int) n`, many)
	began := time.Now()
	pgtest.WaitFor(t, time.Minute, "all have fired", func() bool {
		return one[int](t, pool, `select count(*) from trapeze.schedule_fires where outcome = 'fired'`) == many
	})
	t.Logf("%d fires in %s", many, time.Since(began))
	quiet(t, pool)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs`), many)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.schedules where next_at > now()`), many)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.pods where closed is not null`), 0) // no lease was lost
}
