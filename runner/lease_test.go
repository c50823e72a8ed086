package runner_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// short sets short leases, for tests in which leases expire.
var short = runner.Options{LeaseDuration: 1200 * time.Millisecond, HeartbeatInterval: 250 * time.Millisecond, PollInterval: 300 * time.Millisecond}

func named(name string) runner.Options {
	o := short
	o.PodName = name
	return o
}

// cable returns a pool that connects through a new proxy, which the test can cut.
func cable(t *testing.T, url string) (*faultnet.Proxy, *pgxpool.Pool) {
	proxy := pgtest.NewProxy(t, url)
	t.Cleanup(func() { proxy.Pass(); proxy.Reset() })
	return proxy, pgtest.Connect(t, proxy.URL())
}

func TestFrozenPodsJobsTakenOver(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `create table rows (fence bigint)`)
	proxy, cut := cable(t, url)
	causes := make(chan error, 10)
	wait, open := latch(t)
	handlers := func(deaf bool) map[string]handler {
		insert := func(j *raw) func(context.Context, pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.Fence())
				return err
			}
		}
		return map[string]handler{
			"slow": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
				if deaf {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					<-wait // the frozen process wakes up much later
					j.Progress(99, 100)
					_ = j.Emit(ctx, "late", "", "", nil)
					_ = j.Tx(context.WithoutCancel(ctx), func(tx pgx.Tx) error { return insert(j)(context.WithoutCancel(ctx), tx) }, "late")
				}
				return runner.Then(rawArgs("child")).Result(j.PodName()).InTx(insert(j)), nil
			},
			"fail": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
				if deaf {
					<-wait
					return nil, errors.New("late")
				}
				return runner.Then(rawArgs("child")).Result(j.PodName()), nil
			},
			"child": succeed,
		}
	}
	o := named("a")
	o.StuckAfter = time.Minute
	a := start(t, cut, o, handlers(true))
	slow, failing := enqueue(t, a, rawArgs("slow"), runner.Subject("s")), enqueue(t, a, rawArgs("fail"))
	podID := a.PodID()
	b := start(t, direct, named("b"), handlers(false))
	inState(t, b, slow, job.Running)
	inState(t, b, failing, job.Running)
	proxy.Blackhole()
	is.True(errors.Is(<-causes, job.ErrLeaseLost)) // the pod stops trusting its lease without a reply from the database
	for _, id := range []int64{slow, failing} {
		j := waitEnded(t, b, id)
		is.Equal(j.State, job.Succeeded)
		is.Equal(string(j.Result), `"b"`)
		is.Equal(j.Fence, int64(2))
		is.Equal(j.Crashes, 1)
		is.Equal(j.Attempt, 1) // the death of a pod does not use up an attempt
	}
	is.Equal(metricValue(t, b, "trapeze_jobs_recovered_total"), 2.0) // the recovery is counted
	is.True(metricValue(t, b, "trapeze_recovery_seconds") >= 1)      // the delay of the recovery is measured
	quiet(t, direct)
	before := queryOne[int](t, direct, `select count(*) from trapeze.job_event where job is not null`)
	proxy.Pass()
	pgtest.Wait(t, "a is back under a new pod id", func() bool { ready, _ := a.Ready(); return ready && a.PodID() != podID })
	open()
	pgtest.Wait(t, "a's handlers have returned", func() bool { return a.Running() == 0 })
	is.True(metricValue(t, a, "trapeze_stale_writes_rejected_total") >= 2) // the late writes were rejected and counted
	is.Equal(metricValue(t, a, "trapeze_leases_lost_total"), 1.0)
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.job_event where job is not null`), before) // no event was written
	is.Equal(queryOne[int](t, direct, `select count(*) from rows where fence = 1`), 0)                         // the handler's row was not written
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.job_progress`), 0)                         // neither progress nor a checkpoint was written
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'child'`), 2)            // no second child was inserted
	checkHistory(t, direct, b)
	id := enqueue(t, a, rawArgs("child"))
	is.Equal(waitEnded(t, b, id).State, job.Succeeded) // pod a works normally again
}

func TestUnrecoveredLapseRenewed(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	causes := make(chan error, 10)
	wait, open := latch(t)
	r := newRunner(t, cut, named("a"), nil)
	runner.HandleRaw(r, "heeds", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if j.Fence() > 1 {
			return nil, nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	runner.HandleRaw(r, "goes_on", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-wait:
			return nil, nil
		}
	}, runner.ContinueWithoutDatabase())
	run(t, r)
	podID := r.PodID()
	heeds, goesOn := enqueueStarted(t, r, rawArgs("heeds")), enqueueStarted(t, r, rawArgs("goes_on"))
	pgtest.Wait(t, "both jobs are running", func() bool { return r.Running() == 2 })
	proxy.Blackhole()
	is.True(errors.Is(<-causes, job.ErrLeaseLost))
	pgtest.Wait(t, "the lease has expired", func() bool {
		return queryOne[bool](t, direct, `select lease_until < now() from trapeze.pods`)
	})
	ready, reasons := r.Ready()
	is.True(!ready)
	is.Equal(reasons, []string{"heartbeats fail: the database does not respond"})
	proxy.Pass()
	j := waitEnded(t, r, heeds)
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Crashes, 0) // the job was handed back, which does not count as a crash
	is.Equal(j.Attempt, 1)
	open()
	j = waitEnded(t, r, goesOn)
	is.Equal(j.State, job.Succeeded) // its handler was not interrupted
	is.Equal(j.Fence, int64(1))
	is.Equal(r.PodID(), podID) // the pod keeps its pod id
	checkHistory(t, direct, r)
}

func TestRunningJobDeleted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, short, map[string]handler{
		"wait": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			return runner.Then(rawArgs("fine")), nil
		},
		"fine": succeed,
	})
	id := enqueueStarted(t, r, rawArgs("wait"))
	inState(t, r, id, job.Running)
	exec(t, pool, `delete from trapeze.live where id = $1`, id)
	exec(t, pool, `delete from trapeze.jobs where id = $1`, id)
	open()
	pgtest.Wait(t, "the handler returns", func() bool { return r.Running() == 0 })
	is.Equal(metricValue(t, r, "trapeze_stale_writes_rejected_total"), 1.0)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 0) // nothing was written and no child was inserted
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("fine"))).State, job.Succeeded)
}

func TestCrashLimitResetByCheckpoint(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	lapse := func(id int64) { // assigns the job to a dead pod, so that it is recovered
		exec(t, pool, `insert into trapeze.pods (id, name, lease_until, closed_at, closed) values (gen_random_uuid(), 'dead', now(), now(), 'lapsed')`)
		exec(t, pool, `update trapeze.live set pod = (select id from trapeze.pods where name = 'dead' order by closed_at desc limit 1) where id = $1`, id)
	}
	claimed, die := make(chan int64, 10), make(chan struct{}, 10)
	r := start(t, pool, short, map[string]handler{
		"waits": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			claimed <- j.Fence()
			if string(j.Args.JSON) == `"forgiven"` && j.Fence() == 2 {
				if err := j.Tx(ctx, func(pgx.Tx) error { return nil }, "half"); err != nil {
					return nil, err
				}
				claimed <- -1
			}
			if string(j.Args.JSON) == `"forgiven"` && j.Fence() == 4 {
				var at string
				_, err := j.LastCheckpoint(&at)
				return runner.Done(at), err
			}
			select {
			case <-ctx.Done():
			case <-die:
			}
			return nil, errors.New("late")
		},
	}, runner.MaxCrashes(3))
	id := enqueue(t, r, rawArgs("waits"))
	for fence := int64(1); fence <= 3; fence++ {
		is.Equal(<-claimed, fence)
		lapse(id)
		die <- struct{}{}
	}
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Failed)
	is.Equal(reasonOf(j), job.ReasonCrashed)
	is.Equal(j.Crashes, 3)
	id = enqueue(t, r, rawArgs("waits", `"forgiven"`))
	for fence := int64(1); fence <= 3; fence++ {
		is.Equal(<-claimed, fence)
		if fence == 2 {
			is.Equal(<-claimed, int64(-1))
		}
		lapse(id)
		die <- struct{}{}
	}
	is.Equal(<-claimed, int64(4))
	j = waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded) // there were three crashes, but a checkpoint after the first reset the count
	is.Equal(string(j.Result), `"half"`)
	is.True(slices.Contains(eventsOf(t, r, id), "job.recovered"))
}
