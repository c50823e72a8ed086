package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestScheduledJobDefaultPriority(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	// These rows were written by the previous version, whose default priority was 0.
	exec(t, pool, `insert into trapeze.schedules (name, expression, kind, priority, declared) values
		('set-before', '@yearly', 'k', 0, null),
		('declared-before', '@yearly', 'k', 0, '{"expression":"@yearly","zone":"UTC","kind":"k","args":{},"missed":"coalesce","catch_up":10,"overlap":"queue"}'),
		('explicit-before', '@yearly', 'k', 0, '{"expression":"@yearly","zone":"UTC","kind":"k","args":{},"missed":"coalesce","catch_up":10,"overlap":"queue"}')`)
	exec(t, pool, `insert into trapeze.schedules (name, expression, kind) values ('in-SQL', '@yearly', 'k')`)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	r.DeclareSchedule("declared", "@yearly", rawArgs("k"))
	r.DeclareSchedule("declared-before", "@yearly", rawArgs("k"))
	r.DeclareSchedule("explicit-before", "@yearly", rawArgs("k"), runner.Priority(0))
	run(t, r)
	kind, expression := "k", "@yearly"
	_, err := r.Admin("ann").SetSchedule(t.Context(), "set", job.ScheduleChange{Expression: &expression, Kind: &kind})
	is.NoErr(err)
	fire, err := r.Admin("ann").TriggerSchedule(t.Context(), "set", nil)
	is.NoErr(err)
	is.Equal(inState(t, r, *fire.JobID, job.Succeeded).Priority, job.DefaultPriority)
	want := map[string]int{"set-before": 0, "declared-before": 10, "explicit-before": 0, "in-SQL": 10, "declared": 10, "set": 10}
	pgtest.Wait(t, "the declarations are stored", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.schedules`) == len(want)
	})
	for name, priority := range want {
		is.Equal(queryOne[int](t, pool, `select priority from trapeze.schedules where name = $1`, name), priority)
	}
}
