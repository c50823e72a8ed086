package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod with a different version of the time zone database has planned the next occurrence at a different hour. This pod must move the
// occurrence without losing or duplicating it.
func TestOccurrencePlannedInOtherZones(t *testing.T) {
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
			r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
			_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("30 1 * * *"))
			is.NoErr(err)
			exec(t, pool, `update trapeze.schedules set anchor = $1, next_at = $2`, at("05-01T12:00"), c.planned)
			r.FireAt(t.Context(), c.now)
			got := column[time.Time](t, pool, `select fire_at from trapeze.schedule_occurrences where outcome = 'fired' order by fire_at`)
			is.Equal(len(got), len(c.want))
			for i := range got {
				is.True(got[i].Equal(c.want[i]))
			}
			is.True(queryOne[time.Time](t, pool, `select next_at from trapeze.schedules`).Equal(c.next))
		})
	}
}
