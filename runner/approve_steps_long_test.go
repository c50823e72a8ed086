//go:build long

package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEmittedStepIntoApprovalLane(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('risky', 'careful')`)
	fan := func(n int) *runner.Outcome {
		children := make([]job.Args, n)
		for i := range children {
			children[i] = rawArgs("risky")
		}
		return runner.FanOut(append(children, rawArgs("safe"))...).Join(rawArgs("last"))
	}
	r := start(t, pool, runner.Options{}, map[string]handler{"risky": succeed, "safe": succeed, "last": succeed,
		"next":     returns(func() *runner.Outcome { return runner.Then(rawArgs("risky")) }),
		"lane":     returns(func() *runner.Outcome { return runner.Then(runner.With(rawArgs("safe"), runner.Lane("careful"))) }),
		"subject":  returns(func() *runner.Outcome { return runner.Then(rawArgs("risky"), runner.Subject("s")) }),
		"in_tx":    returns(func() *runner.Outcome { return runner.Then(rawArgs("risky")).Write("select 1") }),
		"chain":    returns(func() *runner.Outcome { return runner.Then(runner.Chain(rawArgs("safe"), rawArgs("risky"))) }),
		"child":    returns(func() *runner.Outcome { return fan(1) }),
		"children": returns(func() *runner.Outcome { return fan(250) }),
		"join":     returns(func() *runner.Outcome { return runner.FanOut(rawArgs("safe")).Join(rawArgs("risky")) }),
		"sub":      returns(func() *runner.Outcome { return runner.FanOut(runner.Chain(rawArgs("safe"), rawArgs("risky"))) }),
	})
	for kind, n := range map[string]int{"next": 1, "subject": 1, "in_tx": 1, "chain": 1, "child": 1, "children": 250, "join": 1, "sub": 1} {
		is := is.New(t)
		id := enqueue(t, r, rawArgs(kind))
		steps := awaiting(t, pool, "risky", n)
		is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.job where kind = 'risky' and fence > 0 and pipeline_id = $1`, id), 0) // no step has run
		for _, step := range steps {
			is.NoErr(r.Admin("bob").Approve(t.Context(), step))
		}
		quiet(t, pool)
		is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.job where pipeline_id = $1 and state <> 'succeeded'`, id), 0)
		is.Equal(eventsOf(t, r, steps[0]), []string{"job.enqueued", "job.approved", "job.promoted", "job.claimed", "job.succeeded"})
	}
	lane := enqueue(t, r, rawArgs("lane"))
	awaiting(t, pool, "safe", 1)
	is.New(t).Equal(waitEnded(t, r, lane).State, job.Succeeded)
	checkHistory(t, pool, r)
}
