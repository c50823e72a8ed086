package runner_test

import (
	"context"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The claim event marks the start of an attempt. A separate start event would cost one row per job without adding any information.
func TestClaimEventBeforeHandlerCall(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	type seen struct {
		events []string
		fence  int64 // fence of the latest event
		state  job.State
	}
	got := make(chan seen, 3)
	r := start(t, pool, runner.Options{}, map[string]handler{"look": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		var s seen
		err := pool.QueryRow(ctx, `select array_agg(event order by event_no), max(fence), (select state from trapeze.job where id = $1)
			from trapeze.job_event where job = $1`, j.ID()).Scan(&s.events, &s.fence, &s.state)
		got <- s
		return runner.Done(nil), err
	}})
	enqueue(t, r, rawArgs("look"))                                    // started on insert
	_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("look")}) // claimed by a poll
	is.NoErr(err)
	enqueue(t, r, rawArgs("look"), runner.Delay(1)) // promoted, then claimed
	quiet(t, pool)
	for range 3 {
		s := <-got
		is.Equal(s.events[0], "job.enqueued")
		is.Equal(s.events[len(s.events)-1], "job.claimed") // committed before the handler runs
		is.Equal(s.fence, int64(1))
		is.Equal(s.state, job.Running)
	}
	is.Equal(column[string](t, pool, `select distinct event from trapeze.job_event where job is not null order by 1`),
		[]string{"job.claimed", "job.enqueued", "job.promoted", "job.succeeded"}) // no other events
}
