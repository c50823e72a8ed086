package runner_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// crowd counts concurrently running jobs.
type crowd struct{ now, most, all atomic.Int64 }

func (c *crowd) handler(d time.Duration) handler {
	return func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		n := c.now.Add(1)
		defer c.now.Add(-1)
		c.all.Add(1)
		for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
		}
		return nil, pause(ctx, d)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startPods starts n pods on one database, each with its own pool.
func startPods(t *testing.T, url string, n int, o runner.Options, handlers map[string]handler) []*runner.Runner {
	t.Helper()
	var pods []*runner.Runner
	for i := range n {
		o.PodName = fmt.Sprint("pod-", i)
		pods = append(pods, start(t, pgtest.Connect(t, url), o, handlers))
	}
	for _, p := range pods { // until a pod is ready, other pods claim the jobs submitted to it
		pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := p.Ready(); return ready })
	}
	return pods
}

// checkSlotCounts fails the test unless the slots that the pods hold add up to the number recorded for each lane.
func checkSlotCounts(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if n := queryOne[int](t, pool, `select count(*)::int from trapeze.lanes l where l.granted <>
		coalesce((select sum(slots) from trapeze.slot_grants g where g.lane = l.name), 0)`); n > 0 {
		t.Errorf("%d lanes have a wrong slot count", n)
	}
}

func TestLaneLimitAcrossPods(t *testing.T) {
	t.Parallel()
	for _, slots := range firstOf(1, 3, 1) {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			pool := pgtest.Connect(t, url)
			exec(t, pool, `insert into trapeze.lanes (name, slots) values ('narrow', $1)`, slots)
			var c crowd
			pods := startPods(t, url, 4, runner.Options{Slots: 4}, map[string]handler{"k": c.handler(10 * time.Millisecond)})
			for i := range narrowJobs {
				enqueue(t, pods[i%4], rawArgs("k"), runner.Lane("narrow"))
			}
			quiet(t, pool)
			is.Equal(c.all.Load(), int64(narrowJobs))
			is.Equal(c.most.Load(), int64(slots)) // all slots were used, and the limit was never exceeded
			checkSlotCounts(t, pool)
			pgtest.Wait(t, "idle pods return their slots", func() bool {
				return queryOne[int](t, pool, `select granted from trapeze.lanes where name = 'narrow'`) == 0
			})
		})
	}
}

// A pod without jobs requests no slots. For an idle pod, a lane with a limit across all pods costs nothing beyond the usual polls.
func TestIdlePodSlotRequests(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('narrow', 2)`)
	r := start(t, pool, runner.Options{PollInterval: time.Hour, HeartbeatInterval: 50 * time.Millisecond}, map[string]handler{"k": succeed})
	enqueue(t, r, rawArgs("k"), runner.Lane("narrow"))
	quiet(t, pool)
	pgtest.Wait(t, "the slot is returned after an idle heartbeat", func() bool {
		return queryOne[int](t, pool, `select granted from trapeze.lanes where name = 'narrow'`) == 0
	})
	// The pod may request slots one more time, either because its own notification arrives late on a busy machine or after polling for
	// skipped rows.
	pgtest.Wait(t, "ten heartbeats pass without a request for slots", func() bool {
		asked := queryOne[int64](t, pool, `select asked from trapeze.slot_grants`)
		heartbeats(t, pool, r, 10)
		return queryOne[int64](t, pool, `select asked from trapeze.slot_grants`) == asked
	})
}

// heartbeats waits until a pod has sent n heartbeats. The reply to the last one may still be in flight.
func heartbeats(t *testing.T, pool *pgxpool.Pool, r *runner.Runner, n int) {
	t.Helper()
	for range n {
		sent := func() time.Time {
			return queryOne[time.Time](t, pool, `select lease_until from trapeze.pods where id = $1`, r.PodID())
		}
		before := sent()
		pgtest.Wait(t, "a heartbeat", func() bool { return sent().After(before) })
	}
}

func TestLaneSlotsOfDeadPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `insert into trapeze.lanes (name, slots) values ('one', 1)`)
	proxy, cut := cable(t, url)
	wait, _ := latch(t)
	falls := start(t, cut, named("falls"), map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		select {
		case <-wait:
		case <-ctx.Done():
		}
		return nil, context.Cause(ctx)
	}})
	first := enqueueStarted(t, falls, rawArgs("k"), runner.Lane("one"))
	catches := start(t, direct, named("catches"), map[string]handler{"k": succeed})
	second := enqueue(t, catches, rawArgs("k"), runner.Lane("one"))
	proxy.Blackhole()
	is.Equal(waitEnded(t, catches, first).State, job.Succeeded)
	is.Equal(waitEnded(t, catches, second).State, job.Succeeded)
	checkSlotCounts(t, direct)
	proxy.Pass()
}

// runsWithin reports whether any job starts within d.
func (c *crowd) runsWithin(d time.Duration) bool {
	before := c.all.Load()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c.all.Load() > before {
			return true
		}
	}
	return false
}

// A pod with three slots requests slots for only three of the lanes with jobs at a time. The jobs in the other lanes must not wait for the
// poll.
func TestMoreLimitedLanesThanSlots(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) select 'tenant-' || n, 1 from generate_series(1, 300) n`)
	var seen crowd
	pods := startPods(t, url, 2, runner.Options{Slots: 3, PollInterval: time.Hour, LeaseDuration: time.Minute}, map[string]handler{"k": seen.handler(time.Millisecond)})
	is.NoErr(pods[0].Tx(t.Context(), func(tx pgx.Tx) error {
		for n := range 60 {
			if _, err := pods[0].EnqueueTx(t.Context(), tx, rawArgs("k"), runner.Lane(fmt.Sprint("tenant-", 1+5*n))); err != nil {
				return err
			}
		}
		return nil
	}))
	pgtest.Wait(t, "all jobs have run", func() bool { return seen.all.Load() == 60 })
	checkSlotCounts(t, pool)
}
