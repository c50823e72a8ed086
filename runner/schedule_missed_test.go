package runner_test

import (
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// No pod is running from 09:00 to 12:00:30, and an occurrence is due every 15 minutes.
func TestMissedOccurrencesPolicy(t *testing.T) {
	t.Parallel()
	at := func(clock string) time.Time { return utc(t, "05-05T"+clock) }
	for name, c := range map[string]struct {
		missed  job.Missed
		catchUp int
		want    []job.Occurrence
	}{
		"coalesce": {job.MissedCoalesce, 10, []job.Occurrence{
			{FireAt: at("11:45"), Outcome: job.OccurrenceFired, Missed: 10}, // 09:15 to 11:30
			{FireAt: at("12:00"), Outcome: job.OccurrenceFired},             // an occurrence that is half a minute late counts as on time
		}},
		"catch up": {job.MissedCatchUp, 3, []job.Occurrence{
			{FireAt: at("11:00"), Outcome: job.OccurrenceMissed, Missed: 7},
			{FireAt: at("11:15"), Outcome: job.OccurrenceFired},
			{FireAt: at("11:30"), Outcome: job.OccurrenceFired},
			{FireAt: at("11:45"), Outcome: job.OccurrenceFired},
			{FireAt: at("12:00"), Outcome: job.OccurrenceFired},
		}},
		"skip": {job.MissedSkip, 10, []job.Occurrence{
			{FireAt: at("11:45"), Outcome: job.OccurrenceMissed, Missed: 10},
			{FireAt: at("12:00"), Outcome: job.OccurrenceFired},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
			change := every("*/15 * * * *")
			change.Missed, change.CatchUp = &c.missed, &c.catchUp
			_, err := r.Admin("ann").SetSchedule(t.Context(), "s", change)
			is.NoErr(err)
			exec(t, pool, `update trapeze.schedules set anchor = $1, next_at = $2`, at("09:00"), at("09:15"))
			r.FireAt(t.Context(), at("12:00").Add(30*time.Second))
			got := occurrences(t, r, "s")
			slices.Reverse(got)
			is.Equal(len(got), len(c.want))
			for i, f := range got {
				is.True(f.FireAt.Equal(c.want[i].FireAt))
				is.Equal(f.Outcome, c.want[i].Outcome)
				is.Equal(f.Missed, c.want[i].Missed)
				is.Equal(f.JobID != nil, f.Outcome == job.OccurrenceFired)
			}
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), ofOutcome(got, job.OccurrenceFired))
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events where event = 'schedule.missed'`), ofOutcome(got, job.OccurrenceMissed))
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events where event = 'schedule.fired'`), ofOutcome(got, job.OccurrenceFired))
			is.True(queryOne[time.Time](t, pool, `select next_at from trapeze.schedules`).Equal(at("12:15"))) // the schedule continues
		})
	}
}

func TestMissedOccurrenceCountLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("@every 1s"))
	is.NoErr(err)
	from := utc(t, "01-01T00:00")
	exec(t, pool, `update trapeze.schedules set anchor = $1, planned = false, next_at = null`, from)
	now := from.AddDate(0, 9, 0)
	r.FireAt(t.Context(), now)
	list := occurrences(t, r, "s")
	is.Equal(len(list), 1+61)                                               // one for all missed occurrences together, and one for each occurrence in the last minute
	is.Equal(list[61].Missed, 999)                                          // counting stops at a thousand occurrences, which include this one
	is.True(list[61].FireAt.Equal(now.Add(-job.MissedAfter - time.Second))) // the latest missed occurrence
}
