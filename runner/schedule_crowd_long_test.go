//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// If one schedule in a batch cannot be processed, the rest of the batch is processed one schedule at a time. Later batches are processed as
// a whole again.
func TestFailingScheduleInBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	noon := utc(t, "05-05T12:00")
	const many = 230
	exec(t, pool, dueAtNoon, noon, many)
	exec(t, pool, `create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$`)
	exec(t, pool, `create trigger refuse before insert on trapeze.schedule_occurrences for each row when (new.schedule = 's070') execute function refuse()`)
	exec(t, pool, `create function refuse_job() returns trigger language plpgsql as $$ begin raise check_violation using constraint = 'odd'; end $$`)
	exec(t, pool, `create trigger refuse before insert on trapeze.pipelines for each row when (new.name = 's160') execute function refuse_job()`)
	r.FireAt(t.Context(), noon)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences where outcome = 'fired'`), many-2)
	is.Equal(column[string](t, pool, `select schedule from trapeze.schedule_occurrences where outcome = 'failed'`), []string{"s160"}) // this schedule's job was refused
	is.Equal(column[string](t, pool, `select name from trapeze.schedules where next_at = $1`, noon), []string{"s070"})                // this schedule was not processed, so it is retried
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), many-2)                                                     // one job per occurrence
	exec(t, pool, `drop trigger refuse on trapeze.schedule_occurrences`)
	r.FireAt(t.Context(), noon.Add(time.Second))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences where outcome = 'fired'`), many-1)
}
