//go:build long

package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Only those who may approve jobs can set a schedule for a lane that requires approval, so the scheduled jobs run without further approval.
// This applies to schedules set by a program or an operator, and to manual triggers. Jobs submitted directly to the lane still wait for
// approval.
func TestScheduleIntoApprovalLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('asks', true)`)
	r.DeclareSchedule("declared", "@every 1s", rawArgs("k"), runner.Lane("asks"))
	run(t, r)
	kind, lane, expression := "k", "asks", "@yearly"
	_, err := r.Admin("ann").SetSchedule(t.Context(), "set", job.ScheduleChange{Expression: &expression, Kind: &kind, Lane: &lane})
	is.NoErr(err)
	triggered, err := r.Admin("ann").TriggerSchedule(t.Context(), "set", nil)
	is.NoErr(err)
	is.Equal(triggered.State, job.Pending)
	inState(t, r, *triggered.JobID, job.Succeeded)
	pgtest.Wait(t, "a scheduled job has run", func() bool {
		return queryOne[bool](t, pool, `select exists (select from trapeze.schedule_occurrences f join trapeze.job j on j.id = f.job_id
			where f.schedule = 'declared' and j.state = 'succeeded')`)
	})
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.parked where why = 'approval'`), 0)
	submitted := enqueue(t, r, rawArgs("k"), runner.Lane("asks"))
	inState(t, r, submitted, job.AwaitingApproval)
}
