package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// When a thousand schedules are due at once, two pods share the work. Each schedule fires once and on time, and both pods keep their
// leases.
func TestManySchedulesDueAtOnce(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const many = 1000
	pool := pgtest.Pool(t)
	start(t, pool, runner.Options{Slots: 16}, map[string]handler{"k": succeed})
	start(t, pool, runner.Options{Slots: 16}, map[string]handler{"k": succeed})
	exec(t, pool, `insert into trapeze.schedules (name, expression, kind, missed, planned, next_at, anchor)
		select 's' || n, '@every 8760h', 'k', 'skip', true, t.at, t.at - interval '8760 hours'
		from (select clock_timestamp() as at) t, generate_series(1, $1::int) n`, many)
	began := time.Now()
	pgtest.WaitFor(t, time.Minute, "all schedules have fired", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences where outcome = 'fired'`) == many
	})
	t.Logf("%d fires in %s", many, time.Since(began))
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), many)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules where next_at > now()`), many)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.pods where closed is not null`), 0) // no lease was lost
}
