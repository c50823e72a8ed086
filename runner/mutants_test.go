//go:build mutants

package runner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/mutant"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A mutant that does nothing would be a hole in the net that nobody sees: each of those of this package is shown to be as
// wrong as it says. They change the whole process, so these tests do not run beside others.

// choose makes a mistake until the test ends.
func choose(t *testing.T, name string) {
	t.Helper()
	if err := mutant.Set(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mutant.Set("") })
}

// absence is how long something that must not happen is given to happen.
const absence = 1500 * time.Millisecond

func TestADoubleChainHasTwoChildren(t *testing.T) {
	choose(t, mutant.DoubleChain)
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	o := named("a")
	o.LeaseFor = 6 * time.Second
	r := start(t, pool, o, map[string]does{
		"a": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(of("b")).Result("result-of-a"), nil
		},
		"b": nothing,
	})
	cut := proxy.CutReplyOnce(holds("result-of-a"))
	enqueue(t, r, of("a"))
	<-cut
	quiet(t, direct)
	is.Equal(one[int](t, direct, `select count(*) from trapeze.jobs where kind = 'b'`), 2) // where one would do
}

func TestALostChildIsMissingWhenItsInsertFails(t *testing.T) {
	choose(t, mutant.LostChild)
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `alter table trapeze.jobs add constraint no_b check (kind <> 'b')`)
	r := start(t, pool, runner.Options{}, map[string]does{
		"a": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(of("b")), nil }, "b": nothing,
	})
	is.Equal(ended(t, r, enqueue(t, r, of("a"))).State, job.Succeeded) // as if all were well
	quiet(t, pool)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs`), 1)
}

func TestMoreJobsAreBornThanThereAreSlots(t *testing.T) {
	choose(t, mutant.SlotsExceeded)
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	var running atomic.Int64
	r := start(t, pool, runner.Options{Slots: 2}, map[string]does{"a": func(context.Context, *raw) (*runner.Outcome, error) {
		running.Add(1)
		<-wait
		return nil, nil
	}})
	for range 4 {
		begun(t, r, of("a"))
	}
	is.True(running.Load() > 2) // of two slots
	open()
	quiet(t, pool)
}

// The next step runs while nobody can write the end of the one before.
func TestAChildIsLaunchedBeforeTheCommitOfItsParent(t *testing.T) {
	choose(t, mutant.LaunchBeforeCommit)
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	began := make(chan int64, 1)
	r := start(t, pool, runner.Options{}, map[string]does{
		"a": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return runner.Then(of("b")), nil },
		"b": func(_ context.Context, j *raw) (*runner.Outcome, error) { began <- j.ID(); return nil, nil },
	})
	parent := begun(t, r, of("a"))
	lock, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer lock.Rollback(context.WithoutCancel(t.Context()))
	_, err = lock.Exec(t.Context(), `lock table trapeze.job_events in access exclusive mode`)
	is.NoErr(err)
	open()
	child := <-began
	is.Equal(get(t, r, parent).State, job.Running) // still
	is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs where id = $1`, child), 0)
	is.NoErr(lock.Rollback(t.Context()))
	is.Equal(ended(t, r, parent).State, job.Succeeded)
}

func TestAWakeUpThatIsMissedIsNeverMadeUpFor(t *testing.T) {
	choose(t, mutant.NoListenRepoll)
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	o := named("a")
	o.LeaseFor = time.Minute // longer than the network is away: a pod that trusts its lease again looks, too
	r := start(t, pool, o, map[string]does{"a": nothing})
	listens := func() bool { return value(t, r, "trapeze_listen_connected") == 1 }
	pgtest.Wait(t, "the pod listens", listens)
	is.Equal(ended(t, r, enqueue(t, make1(t, direct, o, nil), of("a"), runner.Foreign())).State, job.Succeeded) // it hears

	proxy.Blackhole()
	proxy.Reset()
	pgtest.Wait(t, "the pod listens no more", func() bool { return !listens() })
	missed := enqueue(t, make1(t, direct, o, nil), of("a"), runner.Foreign())
	proxy.Pass()
	pgtest.Wait(t, "the pod listens again", listens)
	time.Sleep(absence)
	is.Equal(one[string](t, direct, `select state from trapeze.job where id = $1`, missed), "pending")
}

// A transaction with the handler's writes ends its job and begins the next step. Its reply is lost.
func TestABlindRetryForgetsTheStepThatItsFirstTryBegan(t *testing.T) {
	choose(t, mutant.BlindCommitRetry)
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `create table rows (job bigint)`)
	proxy, pool := cable(t, url)
	o := named("a")
	o.LeaseFor = 6 * time.Second
	armed := make(chan (<-chan struct{}), 1) // by the handler: other commits, such as the calendar's, are not meant
	r := start(t, pool, o, map[string]does{
		"kind-a": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			armed <- proxy.CutReplyOnce(holds("commit"))
			return withRow(j, 1)
		},
		"kind-b": nothing,
	})
	id := enqueue(t, r, of("kind-a"))
	<-<-armed
	is.Equal(ended(t, make1(t, direct, o, nil), id).State, job.Succeeded)
	time.Sleep(absence)
	is.Equal(one[string](t, direct, `select state from trapeze.job where parent_id = $1`, id), "running")
	is.Equal(r.Running(), 0) // for nobody
}

func TestADoubleCountJoinsBeforeTheLastBranchHasEnded(t *testing.T) {
	choose(t, mutant.DoubleCount)
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	r := start(t, pool, runner.Options{Slots: 4}, map[string]does{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(of("child"), of("slow")).Join(of("join")), nil
		},
		"child": nothing,
		"slow":  func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"join":  nothing,
	})
	id := enqueue(t, r, of("parent"))
	is.Equal(over(t, pool, id), "succeeded")
	is.Equal(one[int](t, pool, `select count(*) from trapeze.done where id in (select id from trapeze.jobs where kind = 'slow')`), 0) // while a branch runs
	open()
	quiet(t, pool)
}

// The fire was decided before, as by another pod at the same moment.
func TestABlindFireMakesAJobOfAFireThatWasDecided(t *testing.T) {
	choose(t, mutant.BlindFire)
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := make1(t, pool, runner.Options{}, map[string]does{"k": nothing})
	_, err := r.SetSchedule(t.Context(), "s", every("@hourly"), "ann")
	is.NoErr(err)
	next := one[time.Time](t, pool, `select next_at from trapeze.schedules`)
	exec(t, pool, `insert into trapeze.schedule_fires (schedule, fire_at, outcome) values ('s', $1, 'fired')`, next)
	r.FireAt(t.Context(), next)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.jobs`), 1) // where none would do
	is.Equal(one[int](t, pool, `select count(*) from trapeze.schedule_fires`), 1)
}

func TestLostFiresAreNeverDecided(t *testing.T) {
	choose(t, mutant.LostFires)
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := make1(t, pool, runner.Options{}, map[string]does{"k": nothing})
	_, err := r.SetSchedule(t.Context(), "s", every("@hourly"), "ann")
	is.NoErr(err)
	next := one[time.Time](t, pool, `select next_at from trapeze.schedules`)
	r.FireAt(t.Context(), next.Add(2*time.Hour))
	is.Equal(one[int](t, pool, `select count(*) from trapeze.schedule_fires`), 1) // of three, each with a job or counted as missed
	is.Equal(fires(t, r, "s")[0].Missed, 0)
}

func TestAnUnheardLeaseKeepsTheJobsOfAWorkerThatHasGone(t *testing.T) {
	choose(t, mutant.UnheardLease)
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{LeaseFor: time.Second, HeartbeatEvery: 100 * time.Millisecond}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	id := foreign(t, r, of("far"))
	w.takes(t, r)
	w.cut() // and it is never heard of again
	select {
	case <-time.After(time.Second + absence): // longer than a lease
	case <-t.Context().Done():
	}
	is.Equal(get(t, r, id).State, job.Running) // where it would have been taken back
}

func TestAStreamLeaseGivesAwayWhatAWorkerIsInTheMiddleOf(t *testing.T) {
	choose(t, mutant.StreamLease)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{LeaseFor: 5 * time.Second, HeartbeatEvery: 100 * time.Millisecond}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	id := foreign(t, r, of("far"))
	w.takes(t, r)
	w.cut()
	w.keepBeating(t, r) // it lives, and says that it works on it
	pgtest.Wait(t, "its job is given back", func() bool { return get(t, r, id).State == job.Pending })
}

func TestAStaleReportEndsTheJobOfAnother(t *testing.T) {
	choose(t, mutant.StaleReport)
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	o := runner.Options{LeaseFor: time.Second, HeartbeatEvery: 100 * time.Millisecond}
	r := start(t, pgtest.Connect(t, url), o, noKinds)
	frozen, next := newFar(), newFar()
	frozen.connect(t, r, 1, "far")
	id := foreign(t, r, of("far"))
	a := frozen.takes(t, r)
	pgtest.Wait(t, "its lease is over", func() bool { return get(t, r, id).State == job.Pending })
	next.connect(t, r, 1, "far")
	b := next.takes(t, r)
	next.keepBeating(t, r)
	is.True(b.Fence > a.Fence)
	pgtest.Wait(t, "the report is taken, where it would have been refused", func() bool {
		_, err := frozen.reports(t, r, a, nil, nil)
		return err == nil
	})
	is.Equal(get(t, r, id).State, job.Succeeded) // by whom it was not
	is.Equal(one[string](t, pool, `select pod::text from trapeze.done where id = $1`, id), frozen.id)
}
