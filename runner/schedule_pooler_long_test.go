//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Behind a transaction pooler, statements may use different backends and pods receive no notifications. Two pods still fire each schedule
// once and on time, even if many are due at once, and manual triggers work.
func TestSchedulesBehindTransactionPooler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	through, direct := pooled(t)
	pod := func() *runner.Runner {
		return start(t, through, runner.Options{DirectURL: "off", PollInterval: time.Second, Slots: 4}, map[string]handler{"k": succeed})
	}
	r, _ := pod(), pod()
	keyed, key, skip := every("@every 1s"), "one", job.OverlapSkip
	keyed.UniqueKey, keyed.Overlap = &key, &skip
	done, err := r.Admin("ann").SetSchedule(t.Context(), "keyed", keyed)
	is.NoErr(err)
	const many = 120
	exec(t, direct, `insert into trapeze.schedules (name, expression, kind, missed, planned, next_at, anchor)
		select 's' || n, '@every 8760h', 'k', 'skip', true, t.at, t.at - interval '8760 hours'
		from (select clock_timestamp() as at) t, generate_series(1, $1::int) n`, many)
	exec(t, direct, `insert into trapeze.schedules (name, expression, kind) values ('written', '@every 1s', 'k')`) // no occurrence has been planned yet
	pgtest.Wait(t, "the schedules due at once have fired, and the others continue", func() bool {
		return queryOne[int](t, direct, `select count(*) from trapeze.schedule_occurrences where schedule like 's%' and outcome = 'fired'`) == many &&
			len(occurrences(t, r, "keyed")) > 2 && len(occurrences(t, r, "written")) > 2
	})
	by, err := r.Admin("ann").TriggerSchedule(t.Context(), "written", nil)
	is.NoErr(err)
	inState(t, r, *by.JobID, job.Succeeded)
	_, err = r.Admin("ann").PauseSchedule(t.Context(), "keyed")
	is.NoErr(err)
	_, err = r.Admin("ann").PauseSchedule(t.Context(), "written")
	is.NoErr(err)
	quiet(t, direct)
	list := occurrences(t, r, "keyed")
	for i, f := range list {
		is.Equal(f.FireAt.Sub(done.NextFires[0]), time.Duration(len(list)-1-i)*time.Second) // no occurrence is missing or duplicated
	}
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs`), queryOne[int](t, direct, `select count(distinct job_id) from trapeze.schedule_occurrences`))
	is.Equal(queryOne[float64](t, direct, `select count(*)::float8 from trapeze.schedule_occurrences where outcome = 'missed'`), 0.0)
}
