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

// A pod whose zones are of another year has planned the next fire for another hour than this one would: the fire is moved, not lost, and
// not doubled.
func TestAFireThatAPodWithOtherZonesPlannedIsMovedNotLost(t *testing.T) {
	t.Parallel()
	at := func(day string) time.Time { return utc(t, day) }
	for name, c := range map[string]struct {
		planned time.Time
		now     time.Time
		want    []time.Time // fires
		next    time.Time
	}{
		"it should have been an hour ago": {at("05-05T02:30"), at("05-05T02:30"), []time.Time{at("05-05T01:30")}, at("05-06T01:30")},
		"it is in an hour":                {at("05-05T00:30"), at("05-05T00:30"), nil, at("05-05T01:30")},
		"an hour ago, and seen late":      {at("05-05T02:30"), at("05-06T01:30"), []time.Time{at("05-05T01:30"), at("05-06T01:30")}, at("05-07T01:30")},
		"as planned here":                 {at("05-05T01:30"), at("05-05T01:30"), []time.Time{at("05-05T01:30")}, at("05-06T01:30")},
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

// A pod that does not know a zone says so, and leaves the schedule to the pods that know it.
func TestAScheduleInAZoneThatAPodDoesNotKnowIsLeftToOthers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]does{"k": nothing})
	_, err := r.Admin().SetSchedule(t.Context(), "s", every("* * * * * *"), "ann")
	is.NoErr(err)
	_, err = r.Admin().SetSchedule(t.Context(), "other", every("* * * * * *"), "ann")
	is.NoErr(err)
	pgtest.Wait(t, "it fires", func() bool { return ofOutcome(fires(t, r, "s"), job.FireFired) > 0 })
	exec(t, pool, `update trapeze.schedules set zone = 'Mars/Olympus' where name = 's'`)
	wrong := func() string { return one[string](t, pool, `select error from trapeze.schedules where name = 's'`) }
	pgtest.Wait(t, "it is told", func() bool { return strings.Contains(wrong(), "Mars/Olympus") })
	is.Equal(one[bool](t, pool, `select planned from trapeze.schedules where name = 's'`), false) // still to be planned, by who can
	before := len(fires(t, r, "other"))
	pgtest.Wait(t, "the other one fires", func() bool { return len(fires(t, r, "other")) >= before+3 })
	exec(t, pool, `update trapeze.schedules set zone = 'Europe/Zurich' where name = 's'`)
	before = len(fires(t, r, "s"))
	pgtest.Wait(t, "it fires again", func() bool { return len(fires(t, r, "s")) > before })
	is.Equal(wrong(), "")
}
