package runner_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// far starts a pod whose requests to the database are delayed by a millisecond. The pod claims no jobs ahead of time.
// direct is a pool that reaches the same database without the delay.
func far(t *testing.T, slots int, kind string, work handler) (r *runner.Runner, proxy *faultnet.Proxy, direct *pgxpool.Pool) {
	t.Helper()
	url := pgtest.URL(t)
	proxy, pool := cable(t, url)
	proxy.Delay(time.Millisecond)
	return start(t, pool, runner.Options{Slots: slots}, map[string]handler{kind: work}, runner.MaxCrashes(1)), proxy, pgtest.Connect(t, url)
}

func TestRunningJobsWithinSlots(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var most atomic.Int64
	var r *runner.Runner
	var pool *pgxpool.Pool
	r, _, pool = far(t, 2, "job", func(context.Context, *raw) (*runner.Outcome, error) {
		n := queryOne[int64](t, pool, `select count(*) from trapeze.live where state = 'running'`)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		return nil, nil
	})
	ids, err := r.EnqueueMany(t.Context(), many("job", 100))
	is.NoErr(err)
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).Attempt, 1)
	}
	is.Equal(most.Load(), int64(2)) // there were never more running jobs than slots
	checkHistory(t, pool, r)
}

func TestLaneOrderWithDistantDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	called := &calls{}
	r, _, _ := far(t, 1, "job", func(_ context.Context, j *raw) (*runner.Outcome, error) {
		called.add(j.ID())
		return nil, nil
	})
	_, err := r.Admin("me").Pause(t.Context())
	is.NoErr(err)
	var want []int64
	for i := range 5 {
		ids, err := r.EnqueueMany(t.Context(), many("job", 5))
		is.NoErr(err)
		want = append(append(want, ids...), enqueue(t, r, rawArgs("job"), runner.Subject(string(rune('a'+i)))))
	}
	_, err = r.Admin("me").Resume(t.Context())
	is.NoErr(err)
	for _, id := range want {
		waitEnded(t, r, id)
	}
	is.Equal(called.all(), want)
}

func TestLostReplyBeforeNextClaim(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	called := &calls{}
	r, proxy, direct := far(t, 1, "kind-a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
		called.add(j.ID())
		return runner.Done("result-of-a"), nil
	})
	reader := newRunner(t, direct, runner.Options{}, nil)
	cut := proxy.CutReplyOnce(holds("result-of-a"))
	ids, err := r.EnqueueMany(t.Context(), many("kind-a", 20))
	is.NoErr(err)
	for _, id := range ids {
		j := waitEnded(t, reader, id)
		is.Equal(j.State, job.Succeeded)
		is.Equal(j.Crashes, 0)
	}
	<-cut
	quiet(t, direct)
	got := called.all()
	slices.Sort(got)
	is.Equal(got, ids) // each job ran once
	checkHistory(t, direct, reader)
}

func TestEndBesideLockedClaim(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := latch(t)
	r, _, pool := far(t, 1, "job", func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	})
	first := enqueueStarted(t, r, rawArgs("job"))
	rest, err := r.EnqueueMany(t.Context(), many("job", 3))
	is.NoErr(err)
	lock, err := pool.Begin(t.Context())
	is.NoErr(err)
	_, err = lock.Exec(t.Context(), `lock table trapeze.job_progress in access exclusive mode`) // only claims read this table
	is.NoErr(err)
	open()
	pgtest.Wait(t, "the first job has ended", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.done where id = $1`, first) == 1
	})
	is.NoErr(lock.Rollback(t.Context()))
	for _, id := range rest {
		waitEnded(t, r, id)
	}
}
