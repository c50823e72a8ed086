//go:build long

package runner_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestLaneLimitChangedLive(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name) values ('l')`)
	wait, open := latch(t)
	var c crowd
	pods := startPods(t, url, 2, runner.Options{Slots: 4, PollInterval: 200 * time.Millisecond}, map[string]handler{
		"k": c.handler(5 * time.Millisecond),
		"long": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-wait:
			case <-ctx.Done():
			}
			return nil, nil
		},
	})
	limit := func(n any) {
		exec(t, pool, `update trapeze.lanes set slots = $1 where name = 'l'`, n)
		beats := queryOne[time.Time](t, pool, `select now()`)
		pgtest.Wait(t, "every pod has applied the change", func() bool { // each lease has been renewed twice since the change
			return queryOne[bool](t, pool, `select bool_and(lease_until > $1::timestamptz + interval '8.5 seconds') from trapeze.pods`, beats)
		})
	}
	for range 3 {
		enqueueStarted(t, pods[0], rawArgs("long"), runner.Lane("l"))
	}
	limit(2) // the three running jobs continue, and no other job starts
	waits := enqueue(t, pods[1], rawArgs("k"), runner.Lane("l"))
	is.True(!c.runsWithin(700 * time.Millisecond))
	open()
	is.Equal(waitEnded(t, pods[1], waits).State, job.Succeeded)
	limit(0)
	waits = enqueue(t, pods[1], rawArgs("k"), runner.Lane("l"))
	before := c.all.Load()
	_ = pause(t.Context(), 700*time.Millisecond)
	is.Equal(c.all.Load(), before)
	limit(nil)
	is.Equal(waitEnded(t, pods[1], waits).State, job.Succeeded)
	for i := range 50 {
		enqueue(t, pods[i%2], rawArgs("k"), runner.Lane("l"))
	}
	quiet(t, pool)
	checkSlotCounts(t, pool)
}

// Three pods share one slot. Each pod runs an endless chain that could keep the slot forever.
func TestSingleSlotLaneFairness(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('one', 1)`)
	var mu sync.Mutex
	var running, most atomic.Int64
	byPod := map[string]int{}
	stop := make(chan struct{})
	pods := startPods(t, url, 3, runner.Options{Slots: 4}, map[string]handler{"endless": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		mu.Lock()
		byPod[j.PodName()]++
		mu.Unlock()
		select {
		case <-stop:
			return nil, nil
		default: // a chain has at most a thousand steps
			return runner.Then(rawArgs("endless")), pause(ctx, 10*time.Millisecond)
		}
	}})
	for _, pod := range pods {
		enqueue(t, pod, rawArgs("endless"), runner.Lane("one"))
	}
	t.Cleanup(func() { t.Log(byPod) })
	pgtest.Wait(t, "every pod has had the slot several times", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(byPod) == 3 && byPod["pod-0"] > 30 && byPod["pod-1"] > 30 && byPod["pod-2"] > 30
	})
	close(stop)
	quiet(t, pool)
	is.Equal(most.Load(), int64(1))
	checkSlotCounts(t, pool)
}

// Each pod holds one slot and always has work, so no pod returns its slot voluntarily.
func TestLaneLimitBelowPodCount(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('l', 3)`)
	var c crowd
	pods := startPods(t, url, 3, runner.Options{Slots: 4}, map[string]handler{"endless": c.endless(t, 10*time.Millisecond)})
	for _, pod := range pods {
		for range 2 {
			enqueue(t, pod, rawArgs("endless"), runner.Lane("l"))
		}
	}
	pgtest.Wait(t, "the lane is full", func() bool { return c.now.Load() == 3 })
	relimit(t, pool, "l", 1)
	pgtest.Wait(t, "the lane grants no more slots than it has", func() bool {
		return queryOne[bool](t, pool, `select granted <= slots from trapeze.lanes where name = 'l'`)
	})
	pgtest.Wait(t, "the jobs that ran before have ended", func() bool { return c.now.Load() <= 1 })
	c.most.Store(0)
	before := c.all.Load()
	pgtest.Wait(t, "the lane continues", func() bool { return c.all.Load() > before+50 })
	is.Equal(c.most.Load(), int64(1)) // only one job runs at a time
	checkSlotCounts(t, pool)
}
