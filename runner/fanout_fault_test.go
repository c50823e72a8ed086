package runner_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Each of the pod's connections is occupied by a fan-out commit with an unknown outcome. Reading the outcomes back requires those same
// connections.
func TestFanOutCommitsInDoubt(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	holder, err := direct.Acquire(t.Context())
	is.NoErr(err)
	defer holder.Release()
	_, err = holder.Exec(t.Context(), `select pg_advisory_lock(7)`)
	is.NoErr(err)
	exec(t, direct, `create function hangs() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock_shared(7); return new; end'`)
	exec(t, direct, `create constraint trigger hangs after insert on trapeze.fan_outs deferrable initially deferred for each row execute function hangs()`)
	proxy, pool := cable(t, url)
	o := named("a")
	o.PollInterval, o.Slots = 200*time.Millisecond, 8
	r := start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child")).Join(rawArgs("join")), nil
		},
		"child": succeed,
		"join":  succeed,
	})
	submitter := newRunner(t, direct, o, map[string]handler{"parent": succeed})
	var ids []int64
	for range 6 {
		ids = append(ids, enqueue(t, submitter, rawArgs("parent")))
	}
	pgtest.Wait(t, "three commits hang", func() bool {
		return queryOne[int](t, direct, `select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`) == 3
	})
	for range 20 {
		enqueue(t, r, rawArgs("later"), runner.AllowUnregistered()) // a connection is still free
	}
	proxy.Reset()
	_, err = holder.Exec(t.Context(), `select pg_advisory_unlock(7)`)
	is.NoErr(err)
	for _, id := range ids {
		is.Equal(waitPipeline(t, direct, id), "succeeded")
	}
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'child'`), 6)
}

// The pod that finished the last branch disappeared before it could end the parent. Another pod's heartbeat finds the parent and ends it.
func TestUnbalancedFanOutTakeover(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var joined atomic.Int64
	o := named("a")
	o.LeaseDuration = time.Minute // pod a closes the rows of pods whose leases are more than twice as long as pod a's
	r := start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("elsewhere"), runner.AllowUnregistered()), runner.With(rawArgs("elsewhere"), runner.AllowUnregistered())).Join(rawArgs("join")), nil
		},
		"join": func(context.Context, *raw) (*runner.Outcome, error) { joined.Add(1); return nil, nil },
	})
	id := enqueue(t, r, rawArgs("parent"))
	inState(t, r, id, job.Waiting)
	s, podID := inside.Of(r).Store, uuid.NewString()
	is.NoErr(s.Register(t.Context(), store.PodInfo{PodID: podID, Name: "b", Kinds: []string{"elsewhere"}, Slots: 2}, o.LeaseDuration))
	claims, err := s.Claim(t.Context(), podID, []store.Want{{Lane: "default", N: 2}}, []string{"elsewhere"}, nil, true)
	is.NoErr(err)
	is.Equal(len(claims.Jobs), 2)
	var ends []store.Ending
	for _, c := range claims.Jobs {
		ends = append(ends, store.Ending{ID: c.ID, Fence: c.Fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Branch: c.Branch})
	}
	ended, err := s.Finish(t.Context(), podID, ends)
	is.NoErr(err)
	var parents []int64
	for _, e := range ended {
		if e.OffBalance != nil {
			parents = append(parents, *e.OffBalance)
		}
	}
	is.True(slices.Contains(parents, id)) // the reply names the parent, but this pod does not end it
	is.NoErr(s.Leave(t.Context(), podID))
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(joined.Load(), int64(1))
	quiet(t, pool)
	checkHistory(t, pool, r)
}

func TestCancelWaitingJobWithBranches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var joined, told atomic.Int64
	o := named("a")
	o.Slots = 3
	handlers := map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(append(many("child", 4), rawArgs("fans"), runner.With(rawArgs("child", "9"), runner.Delay(time.Hour)))...).Join(rawArgs("join")), nil
		},
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("child", 2)...).Join(rawArgs("join")), nil
		},
		"child": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), job.ErrCancelled) {
				told.Add(1)
			}
			return nil, context.Cause(ctx)
		},
		"join": func(context.Context, *raw) (*runner.Outcome, error) { joined.Add(1); return nil, nil },
	}
	r := start(t, pool, o, handlers)
	id := enqueue(t, r, rawArgs("parent"))
	inState(t, r, id, job.Waiting)
	pgtest.Wait(t, "three children are running", func() bool { return r.Running() == 3 })
	// The cancellation comes from a program that runs no jobs, as an operator's command does.
	operator := newRunner(t, pool, named("operator"), nil)
	c, err := operator.Admin("me").Cancel(t.Context(), id)
	is.NoErr(err)
	is.Equal(c.State, job.Cancelled)
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state <> 'cancelled'`), 0) // all branches were cancelled too
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'join'`), 0)
	is.Equal(told.Load() > 0, true) // the contexts of running handlers were cancelled
	is.Equal(statusOf(t, pool, id), "cancelled")
	is.Equal(joined.Load(), int64(0))
	pgtest.Wait(t, "no fan-out is unsettled", func() bool {
		return queryOne[bool](t, pool, `select bool_and(ended and open = 0) from trapeze.fan_outs`)
	})
	checkHistory(t, pool, r)
}

// Several fan-outs have children with the same unique keys. A child is left out while another child holds its key, and inserted again once
// the key has been released.
func TestChildrenWithSharedUniqueKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	o := named("a")
	o.Slots = 2
	r := start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(
				runner.With(rawArgs("child", "1"), runner.Unique("pending", runner.WhilePending), runner.Lane("slow")),
				runner.With(rawArgs("child", "2"), runner.Unique("active", runner.WhileActive), runner.Lane("slow")),
				runner.With(rawArgs("child", "2"), runner.Unique("active", runner.WhileActive), runner.Lane("slow")),
				runner.With(rawArgs("child", "3"), runner.Lane("slow")),
			), nil
		},
		"child": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
	})
	exec(t, pool, `insert into trapeze.lanes (name, enabled) values ('slow', false)`)
	count := func(args string) int {
		return queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'child' and args::text = $1`, args)
	}
	pgtest.Wait(t, "the lane is known", func() bool {
		made, err := r.Enqueue(t.Context(), rawArgs("child", "0"), runner.Lane("slow"))
		if err == nil {
			_, err = r.Admin("me").Cancel(t.Context(), made.ID)
		}
		return err == nil
	})
	first := enqueue(t, r, rawArgs("parent"))
	inState(t, r, first, job.Waiting)
	second := enqueue(t, r, rawArgs("parent"))
	inState(t, r, second, job.Waiting)
	is.Equal([]int{count("1"), count("2"), count("3")}, []int{1, 1, 2}) // unique children that are still waiting are not inserted twice
	is.Equal(queryOne[int](t, pool, `select branches from trapeze.fan_outs where id = $1`, first), 3)
	is.Equal(queryOne[int](t, pool, `select branches from trapeze.fan_outs where id = $1`, second), 1) // the second parent does not wait for the first one's children
	exec(t, pool, `update trapeze.lanes set enabled = true where name = 'slow'`)
	pgtest.Wait(t, "the jobs with keys are running", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running' and kind = 'child'`) == 2
	})
	no := false
	_, err := r.Admin("me").SetLane(t.Context(), "slow", job.LaneChange{Enabled: &no}) // SetLane applies the change on r's pod immediately
	is.NoErr(err)
	operator := newRunner(t, pool, named("operator"), map[string]handler{"parent": succeed})
	third := enqueue(t, operator, rawArgs("parent"))
	open()
	inState(t, r, third, job.Waiting)
	is.Equal(count("1"), 2) // the first child has started, so another child is inserted
	exec(t, pool, `update trapeze.lanes set enabled = true where name = 'slow'`)
	for _, id := range []int64{first, second, third} {
		is.Equal(waitPipeline(t, pool, id), "succeeded")
	}
	quiet(t, pool)
	checkHistory(t, pool, r)
}

// A waiting job whose branches failed ends without a next step. If the reply to its end is lost, the pod reads back the end.
func TestLostReplyToFailedFanOut(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	o := named("a")
	o.PollInterval, o.LeaseDuration = 200*time.Millisecond, 6*time.Second
	start(t, pool, o, map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child")).Join(rawArgs("join")), nil
		},
		"child": failWith(job.Permanent(errors.New("bad luck"))), "join": succeed,
	})
	submitter := newRunner(t, direct, o, map[string]handler{"parent": succeed})
	lost := proxy.CutReplyOnce(holds("children_failed"))
	id := enqueue(t, submitter, rawArgs("parent"))
	is.Equal(*waitEnded(t, submitter, id).Reason, job.ReasonChildrenFailed)
	<-lost
	quiet(t, direct)
	checkHistory(t, direct, submitter)
}
