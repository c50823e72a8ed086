//go:build long

package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestFullLaneBesideOthers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots_per_pod) values ('full', 2), ('other', null)`)
	wait, _ := latch(t)
	r := start(t, pool, runner.Options{Slots: 4}, map[string]handler{
		"blocks": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"a":      succeed,
	})
	for range 20 {
		enqueue(t, r, rawArgs("blocks"), runner.Lane("full"), runner.Priority(100))
	}
	for range 5 {
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("a"), runner.Lane("other"))).State, job.Succeeded)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running'`), 2)
}

func TestNextStepInClosedLane(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ shut, open string }{
		"drained":  {`update trapeze.lanes set drained = true`, `update trapeze.lanes set drained = false`},
		"disabled": {`update trapeze.lanes set enabled = false`, `update trapeze.lanes set enabled = true`},
		"no slots": {`update trapeze.lanes set slots_per_pod = 0`, `update trapeze.lanes set slots_per_pod = null`},
		"paused":   {`update trapeze.queue_state set paused = true`, `update trapeze.queue_state set paused = false`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			beats := func() {
				before := queryOne[time.Time](t, pool, `select lease_until from trapeze.pods`)
				pgtest.Wait(t, "two heartbeats pass", func() bool {
					return queryOne[time.Time](t, pool, `select lease_until from trapeze.pods`).Sub(before) > 450*time.Millisecond
				})
			}
			wait, open := latch(t)
			r := start(t, pool, runner.Options{PollInterval: 200 * time.Millisecond}, map[string]handler{
				"a": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return runner.Then(rawArgs("b")), nil },
				"b": succeed,
			})
			parent := enqueueStarted(t, r, rawArgs("a"))
			exec(t, pool, c.shut)
			beats()
			submitted := enqueue(t, r, rawArgs("b"))
			is.Equal(get(t, r, submitted).State, job.Pending)
			open()
			is.Equal(waitEnded(t, r, parent).State, job.Succeeded)                                                       // running jobs continue
			is.Equal(queryOne[string](t, pool, `select state from trapeze.job where parent_id = $1`, parent), "pending") // the next step waits
			beats()                                                                                                      // let the pod poll in the meantime
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live where state = 'pending' and fence = 0`), 2)
			exec(t, pool, c.open)
			quiet(t, pool) // both jobs are claimed after reopening
			checkHistory(t, pool, r)
		})
	}
}
