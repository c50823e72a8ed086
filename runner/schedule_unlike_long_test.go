//go:build long

package runner_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod that does not know a schedule's zone reports an error and leaves the schedule to other pods.
func TestScheduleInUnknownTimeZone(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("* * * * * *"))
	is.NoErr(err)
	_, err = r.Admin("ann").SetSchedule(t.Context(), "other", every("* * * * * *"))
	is.NoErr(err)
	pgtest.Wait(t, "the schedule fires", func() bool { return ofOutcome(occurrences(t, r, "s"), job.OccurrenceFired) > 0 })
	exec(t, pool, `update trapeze.schedules set zone = 'Mars/Olympus' where name = 's'`)
	wrong := func() string {
		return queryOne[string](t, pool, `select error from trapeze.schedules where name = 's'`)
	}
	pgtest.Wait(t, "the error is reported", func() bool { return strings.Contains(wrong(), "Mars/Olympus") })
	is.Equal(queryOne[bool](t, pool, `select planned from trapeze.schedules where name = 's'`), false) // the schedule is left to a pod that knows the zone
	before := len(occurrences(t, r, "other"))
	pgtest.Wait(t, "the other schedule fires", func() bool { return len(occurrences(t, r, "other")) >= before+3 })
	exec(t, pool, `update trapeze.schedules set zone = 'Europe/Zurich' where name = 's'`)
	before = len(occurrences(t, r, "s"))
	pgtest.Wait(t, "the schedule fires again", func() bool { return len(occurrences(t, r, "s")) > before })
	is.Equal(wrong(), "")
}
