package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// leading returns the runners that report that they are the leader.
func leading(t *testing.T, pods ...*runner.Runner) (who []*runner.Runner) {
	t.Helper()
	for _, r := range pods {
		if metricValue(t, r, "trapeze_leader") == 1 {
			who = append(who, r)
		}
	}
	return who
}

func TestLeaderTakeover(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	fast := func(name string) runner.Options {
		return runner.Options{PodName: name, PollInterval: 500 * time.Millisecond}
	}
	stopA, stopB := make(chan struct{}), make(chan struct{})
	pods := map[*runner.Runner]chan struct{}{}
	for name, stop := range map[string]chan struct{}{"a": stopA, "b": stopB} {
		r := newRunner(t, pool, fast(name), nil)
		pods[r] = stop
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = r.Run(ctx) }()
		go func() { <-stop; cancel() }()
		t.Cleanup(func() { cancel(); <-done })
	}
	var a, b *runner.Runner
	for r := range pods {
		a, b = b, r
	}
	holders := func() int {
		return queryOne[int](t, pool, `select count(*) from pg_locks where locktype = 'advisory' and classid = 0 and objid = 420021 and granted
			and database = (select oid from pg_database where datname = current_database())`)
	}
	pgtest.Wait(t, "one pod leads", func() bool { return len(leading(t, a, b)) == 1 && holders() == 1 })

	// The leader loses its connection.
	for range 3 {
		pid := queryOne[int](t, pool, `select pid from pg_locks where locktype = 'advisory' and objid = 420021
			and database = (select oid from pg_database where datname = current_database())`)
		exec(t, pool, `select pg_terminate_backend($1)`, pid)
		began := time.Now()
		pgtest.Wait(t, "one pod leads again, and no other pod reports that it leads", func() bool {
			return queryOne[int](t, pool, `select count(*) from pg_locks where locktype = 'advisory' and objid = 420021 and pid <> $1
				and database = (select oid from pg_database where datname = current_database())`, pid) == 1 && len(leading(t, a, b)) == 1
		})
		t.Logf("took the lead again after %s", time.Since(began))
	}

	// The leader stops.
	was := leading(t, a, b)[0]
	other := a
	if was == a {
		other = b
	}
	close(pods[was])
	pgtest.Wait(t, "the other pod leads, and no other pod reports that it leads", func() bool {
		return len(leading(t, other)) == 1 && len(leading(t, was)) == 0
	})
	close(pods[other])
	pgtest.Wait(t, "no pod leads, and nothing is locked", func() bool { return len(leading(t, a, b)) == 0 && holders() == 0 })
}

func TestMaintenanceWithUnknownLeader(t *testing.T) {
	t.Parallel()
	for name, direct := range someOf(map[string]string{"off": "off", "an address where nobody listens": "postgres://127.0.0.1:1/nowhere"}, "off") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			a := start(t, pool, runner.Options{PodName: "a", DirectURL: direct}, map[string]handler{"k": succeed})
			b := start(t, pool, runner.Options{PodName: "b", DirectURL: direct}, map[string]handler{"k": succeed})
			rounds := func() float64 {
				return metricValue(t, a, "trapeze_maintenance_seconds") + metricValue(t, b, "trapeze_maintenance_seconds")
			}
			pgtest.Wait(t, "every task has run", func() bool { return rounds() >= 16 && len(leading(t, a, b)) == 2 })
			is.Equal(rounds(), 16.0) // each task ran on only one of the two pods
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.maintenance where done_at is not null and error = ''`), 16)
		})
	}
}

// A frozen pod keeps its session and the leader lock. Other pods take over the tasks that it neglects.
func TestFrozenLeaderTasksTakenOver(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	conn, err := pool.Acquire(t.Context())
	is.NoErr(err)
	defer conn.Release()
	var held bool
	is.NoErr(conn.QueryRow(t.Context(), `select pg_try_advisory_lock(420021)`).Scan(&held))
	is.True(held)
	defer func() { _, _ = conn.Exec(context.Background(), `select pg_advisory_unlock(420021)`) }()
	exec(t, pool, `insert into trapeze.maintenance (task, begun_at, pod) values
		('approval', now() - interval '4 minutes', 'frozen'), ('deadline', now() - interval '2 minutes', 'frozen')`)
	r := start(t, pool, runner.Options{PodName: "a", PollInterval: 500 * time.Millisecond}, nil)
	pgtest.Wait(t, "the overdue tasks have run", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.maintenance where task in ('approval', 'vacuum') and pod = 'a' and done_at is not null`) == 2
	})
	is.Equal(queryOne[string](t, pool, `select pod from trapeze.maintenance where task = 'deadline'`), "frozen") // this task is not overdue yet, so no other pod has taken it over
	is.Equal(len(leading(t, r)), 0)                                                                              // the pod does not report that it is the leader
}
