//go:build long

package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestScheduledJobIDTaken(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{"k": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("* * * * * *"))
	is.NoErr(err)
	done := func(n int) {
		pgtest.Wait(t, "the schedule has fired", func() bool { return queryOne[int](t, pool, `select count(*) from trapeze.done`) >= n })
	}
	done(1)
	occupy(t, pool, 900)
	done(queryOne[int](t, pool, `select count(*) from trapeze.done`) + 3)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences where outcome = 'failed'`), 0)
}
