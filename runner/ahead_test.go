package runner_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// calls records job ids in the order in which the jobs' handlers were called.
type calls struct {
	sync.Mutex
	ids []int64
}

func (c *calls) add(id int64) {
	c.Lock()
	defer c.Unlock()
	c.ids = append(c.ids, id)
}

func (c *calls) all() []int64 {
	c.Lock()
	defer c.Unlock()
	return slices.Clone(c.ids)
}

// quick starts a pod and runs enough short jobs of kind quick for the pod to begin claiming that kind ahead of time. The handler of kind
// slow blocks until open is called or its context is done.
func quick(t *testing.T, pool *pgxpool.Pool, o runner.Options) (r *runner.Runner, called *calls, open func()) {
	t.Helper()
	called = &calls{}
	wait, open := latch(t)
	r = start(t, pool, o, map[string]handler{
		"quick": func(_ context.Context, j *raw) (*runner.Outcome, error) { called.add(j.ID()); return nil, nil },
		"slow": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			select {
			case <-wait:
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	for range 2 {
		ids, err := r.EnqueueMany(t.Context(), many("quick", 100))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			waitEnded(t, r, id)
		}
	}
	called.ids = nil
	return r, called, open
}

// taken counts the unfinished jobs of kind quick that have been claimed, including those that were handed back, which keep their fence.
const taken = `select count(*) from trapeze.live where kind = 'quick' and fence > 0`

func TestClaimsAheadWithoutFreeSlot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := named("a")
	o.Slots = 1
	a, called, open := quick(t, pool, o)
	slow, err := a.EnqueueMany(t.Context(), append(many("slow", 1), many("quick", 20)...))
	is.NoErr(err)
	pgtest.Wait(t, "jobs are claimed ahead", func() bool { return queryOne[int](t, pool, taken) > 0 })
	pgtest.Wait(t, "the handlers return", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.live where kind = 'quick' and state = 'running'`) == 0
	})
	is.Equal(len(called.all()), 0)
	start(t, pool, named("b"), map[string]handler{"quick": succeed})
	for _, id := range slow[1:] {
		j := waitEnded(t, a, id)
		is.Equal(j.Attempt, 1)
		is.Equal(j.Crashes, 0)
	}
	open()
	waitEnded(t, a, slow[0])
}

func TestUrgentJobOvertakesClaimsAhead(t *testing.T) {
	t.Parallel()
	for range 20 { // repeated, because on a slow machine the other jobs may end before the urgent job arrives
		if overtakes(t) {
			return
		}
	}
	t.Error("no urgent job was claimed while others were waiting for the slot")
}

// overtakes submits an urgent job after other jobs have been claimed ahead of time. It reports whether the urgent job was claimed before a
// slot became free.
func overtakes(t *testing.T) (claimed bool) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, called, open := quick(t, pool, runner.Options{Slots: 1})
	ids, err := r.EnqueueMany(t.Context(), append(many("slow", 1), many("quick", 20)...))
	is.NoErr(err)
	pgtest.Wait(t, "jobs are claimed ahead", func() bool { return queryOne[int](t, pool, taken) > 0 })
	urgent := enqueue(t, r, rawArgs("quick"), runner.Priority(50))
	pgtest.Wait(t, "the urgent job is running, or none is left", func() bool {
		return queryOne[bool](t, pool, `select bool_or(id = $1 and fence > 0) or not bool_or(state = 'running') from trapeze.live where kind = 'quick'`, urgent)
	})
	claimed = queryOne[bool](t, pool, `select fence > 0 from trapeze.live where id = $1`, urgent)
	pgtest.Wait(t, "the pod has read the replies to its claims", func() bool {
		return metricValue(t, r, "trapeze_claims_total") >= queryOne[float64](t, pool, `select count(*) from trapeze.job where fence > 0`)
	})
	open()
	for _, id := range append(ids, urgent) {
		waitEnded(t, r, id)
	}
	// One job may overtake the urgent job: the claim is counted just before the pod lets its jobs wait for the slot.
	is.True(slices.Index(called.all(), urgent) <= 1)
	is.Equal(len(called.all()), 21)
	return claimed
}

func TestClaimAheadCancelled(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, called, open := quick(t, pool, runner.Options{Slots: 1})
	ids, err := r.EnqueueMany(t.Context(), append(many("slow", 1), many("quick", 5)...))
	is.NoErr(err)
	pgtest.Wait(t, "jobs are claimed ahead", func() bool { return queryOne[int](t, pool, taken) > 0 })
	_, err = r.Admin("me").Cancel(t.Context(), ids[1])
	is.NoErr(err)
	is.Equal(waitEnded(t, r, ids[1]).State, job.Cancelled)
	open()
	for _, id := range ids[2:] {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.True(!slices.Contains(called.all(), ids[1]))
}

func TestStoppingPodReturnsClaimsAhead(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := named("a")
	o.Slots, o.ShutdownGrace = 1, time.Nanosecond
	r, called, _ := quick(t, pool, o)
	ids, err := r.EnqueueMany(t.Context(), append(many("slow", 1), many("quick", 20)...))
	is.NoErr(err)
	pgtest.Wait(t, "jobs are claimed ahead", func() bool { return queryOne[int](t, pool, taken) > 0 })
	_, err = r.Admin("me").DrainPod(t.Context(), "a", 0)
	is.NoErr(err)
	pgtest.Wait(t, "no claim is held", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.live where kind = 'quick' and state = 'running'`) == 0
	})
	is.Equal(len(called.all()), 0)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live where kind = 'quick' and attempt = 0 and crashes = 0`), len(ids)-1)
}

func TestClaimLimitWithoutClaimsAhead(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var mu sync.Mutex
	most := 0
	r := start(t, pool, runner.Options{Slots: 2, NoClaimAhead: true}, map[string]handler{"quick": func(context.Context, *raw) (*runner.Outcome, error) {
		n := queryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running'`)
		mu.Lock()
		defer mu.Unlock()
		most = max(most, n)
		return nil, nil
	}})
	ids, err := r.EnqueueMany(t.Context(), many("quick", 200))
	is.NoErr(err)
	for _, id := range ids {
		waitEnded(t, r, id)
	}
	is.True(most <= 2)
}

// With random priorities, kinds, cancellations and pods, each job that is neither cancelled nor recovered runs exactly once. On a pod with
// one slot, jobs that were waiting together run in priority order.
func TestClaimsAheadLaneOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, called, open := quick(t, pool, runner.Options{Slots: 1})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	slow := enqueueStarted(t, r, rawArgs("slow", `1`))
	type waiting struct {
		id       int64
		priority int
	}
	var list []waiting
	_, err := r.Admin("me").Pause(t.Context())
	is.NoErr(err)
	for range 5 {
		priority := dice.IntN(3) * 10
		ids, err := r.EnqueueMany(t.Context(), many("quick", 60), runner.Priority(priority))
		is.NoErr(err)
		for _, id := range ids {
			list = append(list, waiting{id, priority})
		}
	}
	cancelled := map[int64]bool{}
	for range 20 {
		id := list[dice.IntN(len(list))].id
		_, _ = r.Admin("dice").Cancel(t.Context(), id)
		cancelled[id] = true
	}
	_, err = r.Admin("me").Resume(t.Context())
	is.NoErr(err)
	open()
	waitEnded(t, r, slow)
	var want []int64
	slices.SortStableFunc(list, func(a, b waiting) int { return b.priority - a.priority })
	for _, w := range list {
		waitEnded(t, r, w.id)
		if !cancelled[w.id] {
			want = append(want, w.id)
		}
	}
	is.Equal(called.all(), want)
}

// However many jobs a pod has run, a handler that returns passes its slot on before its own end is written.
func TestSlotReuseBeforeEndWritten(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, called, open := quick(t, pool, runner.Options{Slots: 1})
	open()
	submit := func() []int64 {
		ids, err := r.EnqueueMany(t.Context(), many("quick", 20))
		is.NoErr(err)
		return ids
	}
	for range 5 { // at most ten ends per slot may be waiting to be written
		for _, id := range submit() {
			waitEnded(t, r, id)
		}
	}
	for range 20 { // repeated, because a slow machine may claim no jobs ahead
		before := len(called.all())
		tx, err := pool.Begin(t.Context())
		is.NoErr(err)
		_, err = tx.Exec(t.Context(), `lock table trapeze.done in access exclusive mode`)
		is.NoErr(err)
		ids, passed := submit(), false
		for began := time.Now(); !passed && time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
			passed = len(called.all()) > before+1
		}
		is.NoErr(tx.Rollback(t.Context()))
		for _, id := range ids {
			waitEnded(t, r, id)
		}
		if passed {
			return
		}
	}
	t.Error("no slot was passed on")
}
