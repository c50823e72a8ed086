package runner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod with a different version of the time zone database has planned the next occurrence for a different hour. This pod moves the
// occurrence, but neither loses nor duplicates it.
func TestAFireThatAPodWithOtherZonesPlannedIsMovedNotLost(t *testing.T) {
	t.Parallel()
	at := func(day string) time.Time { return utc(t, day) }
	for name, c := range map[string]struct {
		planned time.Time
		now     time.Time
		want    []time.Time // expected fire times
		next    time.Time
	}{
		"planned an hour late":               {at("05-05T02:30"), at("05-05T02:30"), []time.Time{at("05-05T01:30")}, at("05-06T01:30")},
		"planned an hour early":              {at("05-05T00:30"), at("05-05T00:30"), nil, at("05-05T01:30")},
		"planned an hour late, decided late": {at("05-05T02:30"), at("05-06T01:30"), []time.Time{at("05-05T01:30"), at("05-06T01:30")}, at("05-07T01:30")},
		"planned correctly":                  {at("05-05T01:30"), at("05-05T01:30"), []time.Time{at("05-05T01:30")}, at("05-06T01:30")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := make1(t, pool, runner.Options{}, map[string]does{"k": nothing})
			_, err := r.Admin().SetSchedule(t.Context(), "s", every("30 1 * * *"), "ann")
			is.NoErr(err)
			exec(t, pool, `update trapeze.schedules set anchor = $1, next_at = $2`, at("05-01T12:00"), c.planned)
			r.FireAt(t.Context(), c.now)
			got := column[time.Time](t, pool, `select fire_at from trapeze.schedule_fires where outcome = 'fired' order by fire_at`)
			is.Equal(len(got), len(c.want))
			for i := range got {
				is.True(got[i].Equal(c.want[i]))
			}
			is.True(one[time.Time](t, pool, `select next_at from trapeze.schedules`).Equal(c.next))
		})
	}
}

// A pod that does not know a schedule's zone reports an error and leaves the schedule to other pods.
func TestAScheduleInAZoneThatAPodDoesNotKnowIsLeftToOthers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]does{"k": nothing})
	_, err := r.Admin().SetSchedule(t.Context(), "s", every("* * * * * *"), "ann")
	is.NoErr(err)
	_, err = r.Admin().SetSchedule(t.Context(), "other", every("* * * * * *"), "ann")
	is.NoErr(err)
	pgtest.Wait(t, "the schedule fires", func() bool { return ofOutcome(fires(t, r, "s"), job.FireFired) > 0 })
	exec(t, pool, `update trapeze.schedules set zone = 'Mars/Olympus' where name = 's'`)
	wrong := func() string { return one[string](t, pool, `select error from trapeze.schedules where name = 's'`) }
	pgtest.Wait(t, "the error is reported", func() bool { return strings.Contains(wrong(), "Mars/Olympus") })
	is.Equal(one[bool](t, pool, `select planned from trapeze.schedules where name = 's'`), false) // left for a pod that knows the zone
	before := len(fires(t, r, "other"))
	pgtest.Wait(t, "the other schedule fires", func() bool { return len(fires(t, r, "other")) >= before+3 })
	exec(t, pool, `update trapeze.schedules set zone = 'Europe/Zurich' where name = 's'`)
	before = len(fires(t, r, "s"))
	pgtest.Wait(t, "the schedule fires again", func() bool { return len(fires(t, r, "s")) > before })
	is.Equal(wrong(), "")
}
