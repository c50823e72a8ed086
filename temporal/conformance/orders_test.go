package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// orders are the cases about the order in which jobs start.
var orders = []testCase{
	{name: "a lane with one slot runs its jobs one after another, in the order of submission", run: func(w *world) {
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("+%s", j.Args.JSON)
			seen.add("-%s", j.Args.JSON)
			return nil, nil
		})
		w.start()
		w.slots(1)
		var ids []int64
		want := ""
		for n := range 10 {
			ids = append(ids, w.enqueue(of("a", fmt.Sprint(n))))
			want += fmt.Sprintf("+%d -%d ", n, n)
		}
		for _, id := range ids {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
		w.Equal(seen.String(), strings.TrimSpace(want))
	}},
	{name: "higher priorities start first", run: func(w *world) {
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			seen.add("%d", j.Priority())
			return nil, nil
		})
		w.start()
		w.slots(1)
		_, err := w.r.Admin("ana").Pause(w.Context())
		w.NoErr(err)
		var ids []int64
		for _, p := range []int{0, -5, 10, 100, 3} {
			ids = append(ids, w.enqueue(of("a"), runner.Priority(p)))
		}
		_, err = w.r.Admin("ana").Resume(w.Context())
		w.NoErr(err)
		for _, id := range ids {
			w.ended(id)
		}
		w.Equal(seen.String(), "100 10 3 0 -5")
	}},
	{name: "one job of a subject runs at a time", run: func(w *world) {
		var running atomic.Int64
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if running.Add(1) > 1 {
				return nil, errors.New("two jobs of a subject run")
			}
			defer running.Add(-1)
			<-hold
			return nil, nil
		})
		w.start()
		var ids []int64
		for range 8 {
			ids = append(ids, w.enqueue(of("a"), runner.Subject("s")))
		}
		w.inState(ids[0], job.Running)
		w.blocked(ids[7], job.BlockerSubject)
		open()
		for _, id := range ids {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
	}},
	{name: "a limit per key limits its running jobs", run: func(w *world) {
		pgtest.Exec(w.T, w.pool, `insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 1)`)
		var running atomic.Int64
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Key() != "tenant" {
				return nil, fmt.Errorf("a job of the key %q", j.Key())
			}
			if running.Add(1) > 1 {
				return nil, errors.New("two jobs of a key run")
			}
			defer running.Add(-1)
			<-hold
			if j.Step() == 0 {
				return runner.Then(of("a")), nil
			}
			return nil, nil
		})
		w.start()
		var ids []int64
		for range 4 {
			ids = append(ids, w.enqueue(of("a"), runner.Key("tenant")))
		}
		w.inState(ids[0], job.Running)
		w.blocked(ids[3], job.BlockerKey)
		open()
		for _, id := range ids {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
		w.wait("all steps have succeeded", func() bool {
			return pgtest.QueryOne[int](w.T, w.pool, `select count(*) from trapeze.job where key = 'tenant' and state = 'succeeded'`) == 8
		})
	}},
	{name: "different subjects run concurrently", run: func(w *world) {
		var running atomic.Int64
		both, meet := podtest.Latch(w.T)
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) {
			if running.Add(1) == 2 {
				meet()
			}
			<-both
			return nil, nil
		})
		w.start()
		one, two := w.enqueue(of("a"), runner.Subject("one")), w.enqueue(of("a"), runner.Subject("two"))
		w.Equal(w.ended(one).State, job.Succeeded)
		w.Equal(w.ended(two).State, job.Succeeded)
		w.Equal(running.Load(), int64(2))
	}},
	{name: "a lane's slots limit its running jobs", differs: "A job that waits for a slot of its lane is shown as due", run: func(w *world) {
		var running, most atomic.Int64
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			<-hold
			return nil, nil
		})
		w.start()
		w.slots(2)
		ids, err := w.r.EnqueueMany(w.Context(), children("a", 20))
		w.NoErr(err)
		w.wait("two jobs run", func() bool { return running.Load() == 2 })
		why := job.BlockerFullLane
		if w.temporal() {
			why = job.BlockerDue
		}
		w.blocked(ids[19], why)
		open()
		for _, id := range ids {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
		w.True(most.Load() <= 2)
	}},
	{name: "a delayed job starts when it is due", run: func(w *world) {
		var began atomic.Int64
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) {
			began.Store(time.Now().UnixNano())
			return nil, nil
		})
		w.start()
		id := w.enqueue(of("a"), runner.Delay(700*time.Millisecond))
		j := w.get(id)
		w.Equal(j.State, job.Pending)
		w.Equal(podtest.ReasonOf(j), job.ReasonScheduled)
		w.True(j.RunAfter != nil)
		w.Equal(w.ended(id).State, job.Succeeded)
		w.True(!time.Unix(0, began.Load()).Before(*j.RunAfter))
	}},
	{name: "no job starts while the queue is paused", run: func(w *world) {
		var seen trail
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) { seen.add("ran"); return nil, nil })
		w.start()
		_, err := w.r.Admin("ana").Pause(w.Context())
		w.NoErr(err)
		id := w.enqueue(of("a"))
		w.blocked(id, job.BlockerPaused)
		w.Equal(w.get(id).State, job.Pending)
		w.Equal(seen.String(), "")
		_, err = w.r.Admin("ana").Resume(w.Context())
		w.NoErr(err)
		w.Equal(w.ended(id).State, job.Succeeded)
	}},
	{name: "no job starts in a drained lane", run: func(w *world) {
		w.handle("a", nothing)
		w.start()
		_, err := w.r.Admin("ana").DrainLane(w.Context(), job.DefaultLane, time.Minute)
		w.NoErr(err)
		id := w.enqueue(of("a"))
		w.blocked(id, job.BlockerDrained)
		_, err = w.r.Admin("ana").UndrainLane(w.Context(), job.DefaultLane)
		w.NoErr(err)
		w.Equal(w.ended(id).State, job.Succeeded)
	}},
}

// slots sets the slot limit of the lane under test.
func (w *world) slots(n int) {
	w.Helper()
	_, err := w.r.Admin("ana").SetLane(w.Context(), job.DefaultLane, job.LaneChange{Slots: job.To(n)})
	w.NoErr(err)
}

// blocked waits until the job is blocked for the given reason.
func (w *world) blocked(id int64, why job.BlockerType) {
	w.Helper()
	w.wait(fmt.Sprintf("job %d is blocked: %s", id, why), func() bool {
		list, err := w.r.Admin("").Blockers(w.Context(), id)
		w.NoErr(err)
		return slices.ContainsFunc(list, func(b job.Blocker) bool { return b.Why == why })
	})
}
