package runner_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// clockChanges lists the expected fire times around clock changes. A schedule whose time is skipped fires once, right after the gap. A
// schedule whose time occurs twice fires at the first of the two.
var clockChanges = []struct {
	zone, expression, from, until string // from (exclusive) and until (inclusive) are in UTC
	want                          []string
}{
	{"Europe/Zurich", "30 2 * * *", "03-27T23:00", "03-30T22:00", []string{"03-28T01:30", "03-29T01:00", "03-30T00:30"}},
	{"Europe/Zurich", "0 3 * * *", "03-27T23:00", "03-30T22:00", []string{"03-28T02:00", "03-29T01:00", "03-30T01:00"}},
	{"Europe/Zurich", "*/30 * * * *", "03-28T23:45", "03-29T02:10", []string{"03-29T00:00", "03-29T00:30", "03-29T01:00", "03-29T01:30", "03-29T02:00"}},
	{"Europe/Zurich", "30 2 * * *", "10-23T22:00", "10-26T23:00", []string{"10-24T00:30", "10-25T00:30", "10-26T01:30"}},
	{"Europe/Zurich", "0 3 * * *", "10-23T22:00", "10-26T23:00", []string{"10-24T01:00", "10-25T02:00", "10-26T02:00"}},
	{"Europe/Zurich", "*/30 * * * *", "10-24T23:45", "10-25T02:40", []string{"10-25T00:00", "10-25T00:30", "10-25T02:00", "10-25T02:30"}},
	{"America/New_York", "30 2 * * *", "03-07T05:00", "03-10T04:00", []string{"03-07T07:30", "03-08T07:00", "03-09T06:30"}},
	{"America/New_York", "*/30 * * * *", "03-08T05:45", "03-08T08:10", []string{"03-08T06:00", "03-08T06:30", "03-08T07:00", "03-08T07:30", "03-08T08:00"}},
	{"America/New_York", "30 1 * * *", "10-31T04:00", "11-03T05:00", []string{"10-31T05:30", "11-01T05:30", "11-02T06:30"}},
	{"America/New_York", "*/30 * * * *", "11-01T04:45", "11-01T07:40", []string{"11-01T05:00", "11-01T05:30", "11-01T07:00", "11-01T07:30"}},
	{"UTC", "@every 45m", "10-25T00:00", "10-25T03:00", []string{"10-25T00:45", "10-25T01:30", "10-25T02:15", "10-25T03:00"}},
}

func utc(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02T15:04", "2026-"+s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Several pods process the occurrences concurrently while time advances through each clock change in random steps.
func TestSchedulesAcrossDaylightSavingChanges(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pool := pgtest.Pool(t)
	pods := make([]*runner.Runner, 3)
	for i := range pods {
		pods[i] = newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	}
	var want []string
	for i, c := range clockChanges {
		name, missed, most := fmt.Sprintf("s%d", i), job.MissedCatchUp, job.MaxCatchUp
		change := every(c.expression)
		change.Zone, change.Missed, change.CatchUp = &c.zone, &missed, &most // catch up on every occurrence, even after a large step
		_, err := pods[0].Admin("ann").SetSchedule(t.Context(), name, change)
		is.NoErr(err)
		from, until := utc(t, c.from), utc(t, c.until)
		exec(t, pool, `update trapeze.schedules set anchor = $2, planned = false, next_at = null where name = $1`, name, from)
		for at := from; at.Before(until); {
			at = at.Add(time.Duration(random.Int64N(int64(3 * time.Hour))))
			if at.After(until) {
				at = until
			}
			var all sync.WaitGroup
			for _, r := range pods {
				all.Go(func() { r.FireAt(t.Context(), at) })
			}
			all.Wait()
			pods[0].FireAt(t.Context(), at) // again, because a pod that found the row locked did nothing
		}
		exec(t, pool, `update trapeze.schedules set paused = true where name = $1`, name)
		for _, at := range c.want {
			want = append(want, name+" 2026-"+at+":00")
		}
	}
	got := column[string](t, pool, `select schedule || to_char(fire_at at time zone 'UTC', ' YYYY-MM-DD"T"HH24:MI:SS') from trapeze.schedule_occurrences
		where outcome = 'fired' order by fire_at, schedule`)
	slices.Sort(got)
	slices.Sort(want)
	is.Equal(got, want)                                                                              // the fire times match the table
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences`), len(want)) // no other occurrence was recorded
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), len(want))                 // one job per occurrence
	is.Equal(queryOne[int](t, pool, `select count(distinct job_id) from trapeze.schedule_occurrences`), len(want))
}
