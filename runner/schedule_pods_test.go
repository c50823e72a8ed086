package runner_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Five pods fire twelve schedules every second. Two pods' connections break at random times, and a third pod stops. The pods usually try to
// fire the same schedules concurrently.
func TestFivePodsShareSchedules(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	var stops []func()
	var breaks []func()
	for i := range 5 {
		proxy, pool := cable(t, url)
		r := newRunner(t, pool, named(fmt.Sprintf("pod-%d", i)), map[string]handler{"k": succeed})
		stops, breaks = append(stops, run(t, r)), append(breaks, proxy.Reset)
	}
	operator := newRunner(t, direct, runner.Options{}, map[string]handler{"k": succeed})
	first := map[string]time.Time{}
	for i := range 12 {
		name, missed, most := fmt.Sprintf("s%d", i), job.MissedCatchUp, 1000
		change := every("* * * * * *")
		change.Missed, change.CatchUp = &missed, &most
		done, err := operator.Admin("ann").SetSchedule(t.Context(), name, change)
		is.NoErr(err)
		first[name] = done.NextFires[0]
	}
	decided := func() int {
		return queryOne[int](t, direct, `select count(*) from trapeze.schedule_occurrences where not manual`)
	}
	pgtest.Wait(t, "the first fires", func() bool { return decided() >= 12 })
	var breaking sync.WaitGroup
	breaking.Go(func() {
		for n := range 6 {
			want := 12 + 6*n
			pgtest.Wait(t, "more fires", func() bool { return decided() >= want })
			breaks[n%2]()
		}
	})
	breaking.Wait()
	stops[2]()
	pgtest.Wait(t, "some seconds of fires", func() bool { return decided() >= 12*fireSeconds })
	for name, at := range first {
		list := occurrences(t, operator, name)
		for i, f := range list {
			is.Equal(f.Outcome, job.OccurrenceFired)
			is.True(f.FireAt.Equal(at.Add(time.Duration(len(list)-1-i) * time.Second))) // one occurrence per second, without gaps
			is.True(f.JobID != nil)
			is.Equal(queryOne[string](t, direct, `select name from trapeze.pipelines where id = $1`, *f.JobID), name)
		}
	}
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs j where not exists (select from trapeze.schedule_occurrences f where f.job_id = j.id)`), 0) // every job belongs to an occurrence
	is.Equal(queryOne[int](t, direct, `select count(*) - count(distinct job_id) from trapeze.schedule_occurrences`), 0)
	// By the database's clock, no schedule fires early.
	is.True(queryOne[float64](t, direct, `select min(extract(epoch from decided_at - fire_at))::float8 from trapeze.schedule_occurrences`) >= 0)
}

// A pod that runs no jobs, such as a web process, still fires schedules. The jobs wait for a pod that can run them.
func TestOccurrencesFromDisabledPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{Disabled: true}, map[string]handler{"k": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("@every 1s"))
	is.NoErr(err)
	pgtest.Wait(t, "a fire", func() bool { return ofOutcome(occurrences(t, r, "s"), job.OccurrenceFired) > 0 })
	is.Equal(get(t, r, *occurrences(t, r, "s")[0].JobID).State, job.Pending)
}

// A pod does not fire schedules for kinds that it does not handle.
func TestSchedulesOfUnhandledKinds(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"other": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("@every 1s"))
	is.NoErr(err)
	r.FireAt(t.Context(), time.Now().Add(time.Hour))
	is.Equal(len(occurrences(t, r, "s")), 0)
	f, err := r.Admin("ann").TriggerSchedule(t.Context(), "s", nil)
	is.NoErr(err)
	is.Equal(f.Outcome, job.OccurrenceFired) // but an operator can trigger the schedule
}
