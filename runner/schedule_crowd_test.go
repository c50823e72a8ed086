package runner_test

import (
	"slices"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// dueAtNoon inserts $2 schedules named s001, s002, … that are all due at noon ($1).
const dueAtNoon = `
insert into trapeze.schedules (name, expression, kind, lane, unique_key, overlap, planned, next_at, anchor)
select 's' || lpad(n::text, 3, '0'), '0 12 * * *', 'k', '', '', 'queue', true, $1, $1::timestamptz - interval '1 hour' from generate_series(1, $2::int) n`

// Schedules that are processed in one batch still have separate policies, unique keys and lanes.
func TestScheduleBatchSeparatePolicies(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	noon := utc(t, "05-05T12:00")
	exec(t, pool, dueAtNoon, noon, 40)
	exec(t, pool, `insert into trapeze.lanes (name, slots_per_pod, requires_approval) values ('asks', 1, true)`)
	exec(t, pool, `update trapeze.schedules set unique_key = 'one' where name in ('s003', 's009', 's020')`)
	exec(t, pool, `update trapeze.schedules set lane = 'asks' where name = 's005'`)
	exec(t, pool, `update trapeze.schedules set lane = 'nowhere' where name = 's006'`)
	exec(t, pool, `update trapeze.schedules set args = to_json(repeat('x', 2000000)) where name = 's007'`)
	exec(t, pool, `update trapeze.schedules set overlap = 'skip' where name in ('s010', 's011')`)
	exec(t, pool, `update trapeze.schedules set expression = 'now and then' where name = 's012'`)
	exec(t, pool, `update trapeze.schedules set planned = true, next_at = $1`, noon)
	exec(t, pool, `insert into trapeze.schedule_occurrences (schedule, fire_at, outcome) values ('s013', $1, 'fired')`, noon) // fired by another pod
	trigger, err := r.Admin("ann").TriggerSchedule(t.Context(), "s011", nil)
	is.NoErr(err)
	r.FireAt(t.Context(), noon)
	want := map[string]job.OccurrenceOutcome{"s009": job.OccurrenceDuplicate, "s020": job.OccurrenceDuplicate, "s006": job.OccurrenceFailed, "s007": job.OccurrenceFailed, "s011": job.OccurrenceOverlap}
	for _, name := range column[string](t, pool, `select name from trapeze.schedules`) {
		list := slices.DeleteFunc(occurrences(t, r, name), func(f job.Occurrence) bool { return f.Manual })
		switch outcome, odd := want[name]; {
		case name == "s012":
			is.Equal(len(list), 0) // this schedule's expression is invalid
		case odd:
			is.Equal(list[0].Outcome, outcome)
			is.True(list[0].JobID == nil)
		case name == "s013":
			is.True(list[0].JobID == nil) // another pod has already processed this occurrence
		default:
			is.Equal(list[0].Outcome, job.OccurrenceFired)
			is.True(list[0].FireAt.Equal(noon))
			is.Equal(queryOne[string](t, pool, `select name from trapeze.pipelines where id = $1`, *list[0].JobID), name)
		}
	}
	is.Equal(queryOne[string](t, pool, `select j.state from trapeze.job j join trapeze.schedule_occurrences f on f.job_id = j.id where f.schedule = 's005'`), "pending") // the job needs no approval
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 40-7+1)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events where event = 'schedule.fired'`), 40-7+1) // including the manual trigger
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules where error <> ''`), 3)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules where next_at = $1`, noon.AddDate(0, 0, 1)), 39)
	is.True(trigger.JobID != nil)
}
