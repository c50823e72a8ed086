package runner_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// slotUse counts the jobs that run concurrently, in the lane narrow and in total. Jobs wait until every slot has been used at once, so the
// counts reach the limits however slow the machine is.
type slotUse struct {
	mu        sync.Mutex
	now, most map[string]int
	limits    map[string]int
	reached   map[string]chan struct{}
}

func newSlotUse(limits map[string]int) *slotUse {
	u := &slotUse{now: map[string]int{}, most: map[string]int{}, limits: limits, reached: map[string]chan struct{}{}}
	for name := range limits {
		u.reached[name] = make(chan struct{})
	}
	return u
}

func (u *slotUse) change(lane string, by int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, name := range []string{lane, "all"} {
		u.now[name] += by
		if u.now[name] > u.most[name] {
			u.most[name] = u.now[name]
			if u.now[name] == u.limits[name] {
				close(u.reached[name])
			}
		}
	}
}

func (u *slotUse) run(ctx context.Context, j *raw) (*runner.Outcome, error) {
	u.change(j.Lane(), 1)
	defer u.change(j.Lane(), -1)
	waitFor := "all"
	if j.Lane() == "narrow" {
		waitFor = "narrow" // jobs of other lanes must find its jobs ended
	}
	select {
	case <-ctx.Done():
	case <-u.reached[waitFor]:
	}
	if j.Step() == 0 && j.ID()%2 == 0 {
		return runner.Then(rawArgs(j.Kind()), runner.Lane(map[string]string{"default": "narrow", "narrow": "default"}[j.Lane()])), nil
	}
	return nil, nil
}

func TestPodAndLaneSlotLimits(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots_per_pod) values ('narrow', 2)`)
	limits := map[string]int{"all": 5, "narrow": 2}
	var use atomic.Pointer[slotUse]
	r := start(t, pool, runner.Options{Slots: 5}, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		return use.Load().run(ctx, j)
	}})
	// The second time shows that no slot has leaked.
	for range 2 {
		u := newSlotUse(limits)
		use.Store(u)
		var submitters sync.WaitGroup
		for range 4 {
			submitters.Go(func() {
				for i := range 40 {
					lane := []string{"default", "narrow"}[i%2]
					if _, err := r.Enqueue(context.WithoutCancel(t.Context()), rawArgs("a"), runner.Lane(lane)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		submitters.Wait()
		quiet(t, pool)
		is.Equal(u.most["narrow"], 2)
		is.Equal(u.most["all"], 5)
		pgtest.Wait(t, "no slot is in use", func() bool { return r.Running() == 0 })
	}
	checkHistory(t, pool, r)
}

func TestPrioritiesComeFirstThenAge(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var order []string
	r := newRunner(t, pool, runner.Options{Slots: 1}, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		order = append(order, string(j.Args.JSON))
		return nil, nil
	}})
	for i, p := range []int{0, 10, 10, -100, 100} {
		enqueue(t, r, rawArgs("a", fmt.Sprint(i)), runner.Priority(p))
	}
	run(t, r)
	quiet(t, pool)
	is.Equal(order, []string{"4", "1", "2", "0", "3"})
}

func TestDisabledPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	web := start(t, pool, runner.Options{Disabled: true, PollInterval: 100 * time.Millisecond}, map[string]handler{"a": succeed})
	id := enqueue(t, web, rawArgs("a"))
	time.Sleep(300 * time.Millisecond) // long enough for two polls; there is no event to wait for when nothing happens
	is.Equal(get(t, web, id).State, job.Pending)
	worker := start(t, pool, runner.Options{}, map[string]handler{"a": succeed})
	is.Equal(*waitEnded(t, web, id).Pod, worker.PodID())
}

// If a pod has fewer free slots than lanes, a poll makes several claims, so it finds a job even in the last lane.
func TestSingleSlotPodManyLanes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name) select 'lane ' || n from generate_series(1, 5) n`)
	o := rarely
	o.Slots = 1
	submitter := newRunner(t, pool, runner.Options{}, nil)
	r := start(t, pool, o, map[string]handler{"a": succeed})
	for n := range 5 {
		id := enqueue(t, submitter, rawArgs("a"), runner.AllowUnregistered(), runner.Lane(fmt.Sprint("lane ", n+1)))
		if j := waitEnded(t, r, id); j.State != job.Succeeded {
			t.Errorf("lane %d: %s", n+1, j.State)
		}
	}
}

func TestDefaultJobPriority(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"a": succeed})
	is.Equal(get(t, r, enqueue(t, r, rawArgs("a"))).Priority, 10)
	is.Equal(get(t, r, enqueue(t, r, rawArgs("a"), runner.Priority(0))).Priority, 0) // 0 is a valid priority, not the default
	for _, beyond := range []int{-101, 101} {
		_, err := r.Enqueue(t.Context(), rawArgs("a"), runner.Priority(beyond))
		is.True(errors.Is(err, job.ErrInvalid))
	}
}
