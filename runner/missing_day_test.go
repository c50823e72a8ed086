package runner_test

import (
	"context"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// If the partitions are detached while a job runs, the default partitions included, its outcome is kept and written once they are back.
func TestAnOutcomeOutlastsMissingPartitions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"slow": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return runner.Done(nil), nil
	}})
	id := enqueue(t, r, rawArgs("slow"))
	inState(t, r, id, job.Running)
	exec(t, pool, `create sequence attempts`)
	exec(t, pool, `create function attempted() returns trigger language plpgsql as $$ begin perform nextval('public.attempts'); return null; end $$`)
	exec(t, pool, `create trigger attempted before insert on trapeze.done for each statement execute function attempted()`)
	day := queryOne[string](t, pool, `select to_char(now() at time zone 'UTC', 'YYYYMMDD')`)
	exec(t, pool, `drop table trapeze.done_succeeded_`+day)
	exec(t, pool, `alter table trapeze.done_succeeded detach partition trapeze.done_succeeded_default`)
	open()
	pgtest.Wait(t, "the outcome has been refused three times", func() bool {
		return queryOne[bool](t, pool, `select last_value >= 3 from attempts`)
	})
	exec(t, pool, `alter table trapeze.done_succeeded attach partition trapeze.done_succeeded_default default`)
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Fence, int64(1))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done_succeeded_default`), 1)
	checkHistory(t, pool, r)
}
