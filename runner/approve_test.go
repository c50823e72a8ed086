package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestApprovalAcrossSubmissionPaths(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('b', 'careful')`)
	r := start(t, pool, runner.Options{}, map[string]handler{"a": succeed, "b": succeed})
	var ids []int64
	submit := func(kind string, options ...runner.EnqueueOption) {
		s, err := r.Enqueue(t.Context(), rawArgs(kind), options...)
		is.NoErr(err)
		is.Equal(s.State, job.AwaitingApproval)
		ids = append(ids, s.ID)
	}
	submit("a", runner.NeedsApproval())
	submit("a", runner.NeedsApproval(), runner.Submitter("ann"), runner.Subject("s"))
	submit("a", runner.NeedsApproval(), runner.Unique("key", runner.WhilePending))
	submit("a", runner.NeedsApproval(), runner.IdempotencyKey("key"))
	submit("b")
	submit("a", runner.Lane("careful"), runner.Unique("other key", runner.WhileActive))
	again, err := r.Enqueue(t.Context(), rawArgs("a"), runner.NeedsApproval(), runner.Unique("key", runner.WhilePending))
	is.NoErr(err)
	is.Equal(again, runner.Submitted{ID: ids[2], PipelineID: ids[2], State: job.AwaitingApproval, Duplicate: true})
	again, err = r.Enqueue(t.Context(), rawArgs("a"), runner.NeedsApproval(), runner.IdempotencyKey("key"))
	is.NoErr(err)
	is.Equal(again, runner.Submitted{ID: ids[3], PipelineID: ids[3], State: job.AwaitingApproval, Duplicate: true})
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		made, err := r.EnqueueTx(t.Context(), tx, rawArgs("a"), runner.NeedsApproval())
		ids = append(ids, made.ID)
		return err
	}))
	for _, n := range []int{3, 250} { // a small batch, and one large enough for COPY
		list := make([]job.Args, n)
		for i := range list {
			list[i] = rawArgs("a")
		}
		many, err := r.EnqueueMany(t.Context(), list, runner.Lane("careful"))
		is.NoErr(err)
		ids = append(ids, many...)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job where id = any($1) and state = 'awaiting_approval'`, ids), len(ids))
	free := enqueue(t, r, rawArgs("a"))
	is.Equal(waitEnded(t, r, free).State, job.Succeeded)                                    // a job that needs no approval runs
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job where fence > 0`), 1) // no other job has started

	for _, id := range ids[:10] {
		is.NoErr(r.Admin("bob").Approve(t.Context(), id))
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
		is.True(errors.Is(r.Admin("bob").Approve(t.Context(), id), job.ErrNotAwaitingApproval))
	}
	is.Equal(eventsOf(t, r, ids[0]), []string{"job.enqueued", "job.approved", "job.promoted", "job.claimed", "job.succeeded"})
	is.True(errors.Is(r.Admin("").Approve(t.Context(), 1<<40), job.ErrNotFound))
	checkHistory(t, pool, r)
}

func TestApprovalWakeUpAcrossPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	a := start(t, pool, runner.Options{PodName: "a", PollInterval: time.Hour, Disabled: true}, map[string]handler{"k": succeed})
	start(t, pool, runner.Options{PodName: "b", PollInterval: time.Hour}, map[string]handler{"k": succeed})
	id := enqueue(t, a, rawArgs("k"), runner.NeedsApproval())
	is.NoErr(a.Admin("").Approve(t.Context(), id))
	is.Equal(waitEnded(t, a, id).State, job.Succeeded) // the approval woke the pod: its next poll is an hour away
}

func TestAPipelineIsApprovedOnce(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `update trapeze.lanes set requires_approval = true`)
	r := start(t, pool, runner.Options{}, map[string]handler{"a": succeed, "b": succeed,
		"asks": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("b"), runner.NeedsApproval()), nil
		}})
	id := enqueue(t, r, runner.Chain(rawArgs("a"), rawArgs("b")))
	inState(t, r, id, job.AwaitingApproval)
	is.NoErr(r.Admin("bob").Approve(t.Context(), id))
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job where pipeline_id = $1 and state = 'succeeded'`, id), 2)
	_, err := r.Enqueue(t.Context(), runner.Chain(rawArgs("a"), runner.With(rawArgs("b"), runner.NeedsApproval())))
	is.True(errors.Is(err, job.ErrInvalid)) // a step of a chain cannot require approval
	asks := enqueue(t, r, rawArgs("asks"))
	is.NoErr(r.Admin("").Approve(t.Context(), asks))
	j := waitEnded(t, r, asks)
	is.Equal(j.State, job.Failed) // the job fails instead of ignoring the request for approval
	is.True(strings.Contains(message(j), "approval is allowed only on submissions"))
	checkHistory(t, pool, r)
}

func TestWhatNobodyApprovesExpires(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{ApprovalTTL: 50 * time.Millisecond}, map[string]handler{"a": succeed})
	id := enqueue(t, r, rawArgs("a"), runner.NeedsApproval())
	run(t, r)
	j := waitEnded(t, r, id) // the job expires in the first maintenance run
	is.Equal(j.State, job.Cancelled)
	is.Equal(reasonOf(j), job.ReasonExpired)
	checkHistory(t, pool, r)
}

// A user who may cancel and retry their own jobs must not be able to bypass approval by doing so. A retried job that was never approved
// awaits approval again.
func TestRetryOfUnapprovedJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	r := start(t, pool, runner.Options{}, map[string]handler{"fails": unlessTrue})
	asks := enqueue(t, r, rawArgs("fails", "false"), runner.NeedsApproval(), runner.Unique("key", runner.WhilePending))
	lane := enqueue(t, r, rawArgs("fails", "false"), runner.Lane("careful"))
	for _, id := range []int64{asks, lane} {
		_, err := r.Admin("ann").Cancel(t.Context(), id)
		is.NoErr(err)
	}
	again, err := r.Admin("ann").Retry(t.Context(), asks, nil)
	is.NoErr(err)
	is.Equal(len(again), 0) // no job has become pending
	many, err := r.Admin("ann").RetryMany(t.Context(), runner.Filter{Lane: "careful", States: []job.State{job.Cancelled}}, false)
	is.NoErr(err)
	is.Equal([]int{many.Done, many.Skipped}, []int{1, 0})
	for _, id := range []int64{asks, lane} {
		is.Equal(get(t, r, id).State, job.AwaitingApproval)
		is.NoErr(r.Admin("bob").Approve(t.Context(), id))
		pgtest.Wait(t, "the job has failed again", func() bool { j := get(t, r, id); return j.State == job.Failed && j.Epoch == 2 })
	}
	again, err = r.Admin("ann").Retry(t.Context(), asks, nil)
	is.NoErr(err)
	is.Equal(again, []int64{asks}) // this job had already been approved
	pgtest.Wait(t, "it has failed again", func() bool { j := get(t, r, asks); return j.State == job.Failed && j.Epoch == 3 })
	for _, id := range []int64{asks, lane} {
		_, err = r.Admin("ann").Retry(t.Context(), id, json.RawMessage("true"))
		is.NoErr(err)
		is.Equal(get(t, r, id).State, job.AwaitingApproval) // the new arguments were not approved
		is.NoErr(r.Admin("bob").Approve(t.Context(), id))
		is.Equal(inState(t, r, id, job.Succeeded).StartedAt != nil, true)
	}
	is.Equal(eventsOf(t, r, lane), []string{"job.enqueued", "job.cancelled", "job.operator_retry", "job.approved", "job.promoted", "job.claimed", "job.failed",
		"job.operator_retry", "job.approved", "job.promoted", "job.claimed", "job.succeeded"})

	_, err = r.Admin("bob").Pause(t.Context())
	is.NoErr(err)
	free := enqueue(t, r, rawArgs("fails", "true"), runner.Delay(time.Hour))
	_, err = r.Admin("ann").Cancel(t.Context(), free)
	is.NoErr(err)
	again, err = r.Admin("ann").Retry(t.Context(), free, nil)
	is.NoErr(err)
	is.Equal(again, []int64{free}) // a job that never needed approval runs immediately
	checkHistory(t, pool, r)
}
