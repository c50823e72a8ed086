package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A join goes to its kind's lane even if the process that completes the last part, and therefore inserts the join, has no lanes configured.
func TestJoinLaneByKind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name) values ('slow')`)
	exec(t, pool, `insert into trapeze.lane_kinds (kind, lane) values ('join', 'slow')`)
	tokens := make(chan string, 1)
	r := start(t, pool, named("a"), map[string]handler{
		"deferred": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			tokens <- token
			return runner.Deferred(1).Join(rawArgs("join")), err
		},
		"join": succeed,
	})
	id := enqueue(t, r, rawArgs("deferred"))
	inState(t, r, id, job.Waiting)
	operator := newRunner(t, pool, named("operator"), nil)
	is.NoErr(operator.Complete(t.Context(), id, <-tokens, 1))
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(queryOne[string](t, pool, `select lane from trapeze.jobs where kind = 'join'`), "slow")
}

// Only submissions can require approval. A child that requires it is rejected rather than run without approval.
func TestChildRequestingApproval(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("child"), runner.NeedsApproval())), nil
		},
		"child": succeed,
	})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("parent")))
	is.Equal(j.State, job.Failed)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'child'`), 0)
}

// If one of the host application's transactions holds a unique key, only the fan-outs that need the key wait for it.
func TestFanOutsAwaitingUniqueKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := named("a")
	o.Slots = 12
	r := start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("child"), runner.Unique("key", runner.WhileActive))), nil
		},
		"child": succeed,
		"other": succeed,
	})
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = r.EnqueueTx(t.Context(), tx, rawArgs("child"), runner.Unique("key", runner.WhileActive))
	is.NoErr(err)
	var parents []int64
	for range 6 { // more fan-outs than the runner has connections
		parents = append(parents, enqueueStarted(t, r, rawArgs("parent")))
	}
	observer := pgtest.Connect(t, pool.Config().ConnConfig.ConnString())
	pgtest.Wait(t, "some jobs are waiting for the key", func() bool {
		return queryOne[int](t, observer, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) >= 3
	})
	other := enqueue(t, r, rawArgs("other"))
	pgtest.Wait(t, "another job ends in the meantime", func() bool {
		return queryOne[int](t, observer, `select count(*) from trapeze.done where id = $1`, other) == 1
	})
	is.NoErr(tx.Commit(t.Context()))
	for _, id := range parents {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
}

// A branch whose row is locked cannot be cancelled yet, but it does not prevent the pods from doing other work.
func TestClaimsBesideLockedBranch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("held"), runner.AllowUnregistered()), runner.With(rawArgs("held"), runner.AllowUnregistered())), nil
		},
		"other": succeed,
	})
	submitter := newRunner(t, pool, named("submitter"), map[string]handler{"other": succeed})
	id := enqueue(t, r, rawArgs("parent"))
	inState(t, r, id, job.Waiting)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `select from trapeze.live where kind = 'held' for update`)
	is.NoErr(err)
	_, err = admin.Cancel(t.Context(), inside.Of(r).Store, id, 0, false, "me", func(job.Lease) {})
	is.NoErr(err)
	pgtest.Wait(t, "the fan-out is unsettled", func() bool {
		return queryOne[bool](t, pool, `select ended and open = 2 from trapeze.fan_outs`)
	})
	for range 5 { // each fan-out is claimed by a sweep of the pod
		began := time.Now()
		other := enqueue(t, submitter, rawArgs("other"))
		is.Equal(waitEnded(t, r, other).State, job.Succeeded)
		is.True(time.Since(began) < 2*time.Second)
	}
	is.NoErr(tx.Rollback(t.Context()))
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'cancelled'`), 3)
}

// A job that was cancelled ends as cancelled even if its handler then fans out.
func TestFanOutOfCancelledHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, named("a"), map[string]handler{
		"parent": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return runner.FanOut(rawArgs("child")), nil
		},
		"child": succeed,
	})
	var ids []int64
	for range 8 {
		id := enqueueStarted(t, r, rawArgs("parent"))
		is.NoErr(admin.NotifyHandler(t.Context(), inside.Of(r).Store, id, func(job.Lease) {}))
		ids = append(ids, id)
	}
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Cancelled)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'child'`), 0)
}
