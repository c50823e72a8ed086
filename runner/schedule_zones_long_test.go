//go:build long

package runner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The expected fire times come from a minute-by-minute walk along the wall clock, which is independent of the scheduler's rules. Each day,
// the schedule fires in the first minute that shows the scheduled time. If that time is skipped, it fires in the first minute after it.
func TestDailyScheduleAcrossTimeZones(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	missed, most := job.MissedCatchUp, job.MaxCatchUp
	from, until := utc(t, "02-20T00:00"), utc(t, "11-20T00:00")
	want := map[string]bool{}
	for i, zone := range []string{"Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"} {
		loc, err := time.LoadLocation(zone)
		is.NoErr(err)
		for hour := range 4 {
			name := fmt.Sprintf("s%d.%d", i, hour)
			change := every(fmt.Sprintf("17 %d * * *", hour))
			change.Zone, change.Missed, change.CatchUp = &zone, &missed, &most
			_, err := r.Admin("ann").SetSchedule(t.Context(), name, change)
			is.NoErr(err)
			last := from.In(loc).Format("2006-01-02") // the last day whose occurrence is in the past
			if from.In(loc).Format("15:04") < fmt.Sprintf("%02d:17", hour) {
				last = ""
			}
			for at := from.Add(time.Minute); !at.After(until); at = at.Add(time.Minute) {
				wall := at.In(loc)
				if day := wall.Format("2006-01-02"); day > last && wall.Format("15:04") >= fmt.Sprintf("%02d:17", hour) {
					want[name+at.UTC().Format(" 2006-01-02T15:04:05")], last = true, day
				}
			}
		}
	}
	exec(t, pool, `update trapeze.schedules set anchor = $1, planned = false, next_at = null`, from)
	r.FireAt(t.Context(), until)
	for _, got := range column[string](t, pool, `select schedule || to_char(fire_at at time zone 'UTC', ' YYYY-MM-DD"T"HH24:MI:SS') from trapeze.schedule_occurrences`) {
		is.True(want[got]) // each actual fire time was expected
		delete(want, got)
	}
	is.Equal(len(want), 0) // each expected fire time occurred
}
