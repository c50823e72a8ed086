package runner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A limit that is raised admits waiting jobs at once: polls are so rare that nothing else does. A limit that is lowered interrupts no job.
func TestLimitChangedLive(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	started, end := make(chan string, 40), make(chan struct{})
	handle := func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		started <- j.Key()
		select {
		case <-end:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}
	var pods []*runner.Runner
	for i := range 2 {
		pods = append(pods, start(t, pool, runner.Options{PodName: fmt.Sprint("pod-", i), Slots: 8, PollInterval: seldom}, map[string]handler{"k": handle}))
	}
	limit := func(slots int) job.KeyLimitChanged {
		done, err := pods[1].Admin("ann").SetLimit(t.Context(), job.KeyLimitChange{LimitOf: job.LimitOf{Scope: job.LaneScope, Name: "default", Key: "*"}, Slots: job.To(slots)})
		is.NoErr(err)
		return done
	}
	running := func() int { return queryOne[int](t, pool, `select count(*) from trapeze.live where state = 'running'`) }
	limit(1)
	for i := range 20 {
		enqueue(t, pods[0], rawArgs("k"), runner.Key(fmt.Sprint("tenant-", i%2)))
	}
	starts := func(n int) {
		for range n {
			<-started
		}
	}
	starts(2)
	limit(4)
	starts(6)
	lowered := limit(2)
	is.Equal([]int{lowered.Held, running()}, []int{0, 8})
	for range 4 {
		end <- struct{}{}
	}
	use, err := pods[0].Admin("").KeysInUse(t.Context(), "default", "", "")
	is.NoErr(err)
	is.Equal(len(use.Keys), 2)
	is.Equal(use.Keys[0].LaneLimit, 2)
	close(end)
	pgtest.Wait(t, "all jobs end", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`) == 20
	})
	removed, err := pods[0].Admin("ann").RemoveLimit(t.Context(), lowered.LimitOf)
	is.NoErr(err)
	is.Equal(removed.After, nil)
	list, err := pods[0].Admin("").Limits(t.Context(), job.KeyLimitFilter{}, job.LimitOf{}, 0)
	is.NoErr(err)
	is.Equal(len(list), 0)
	checkHistory(t, pool, pods[0])
}

// No job is left behind while limits change, and none of the changes fails. Polls are so rare that they admit none.
func TestLimitsChangedUnderLoad(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	const jobs = limitedJobs
	ends := make(chan struct{}, jobs) // six jobs may end after each change
	handle := func(context.Context, *raw) (*runner.Outcome, error) {
		<-ends
		return nil, nil
	}
	var pods []*runner.Runner
	for i := range 2 {
		pods = append(pods, start(t, pool, runner.Options{PodName: fmt.Sprint("pod-", i), Slots: 6, PollInterval: seldom}, map[string]handler{"k": handle, "l": handle}))
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, pod := range pods {
		wg.Go(func() {
			for n := range jobs / 2 {
				options := []runner.EnqueueOption{runner.Key(fmt.Sprint("tenant-", n%3))}
				if n%2 == 0 {
					options = append(options, runner.Subject(fmt.Sprint(n%5)))
				}
				enqueue(t, pod, rawArgs([]string{"k", "l"}[(n+i)%2]), options...)
			}
		})
	}
	ended := func() int {
		return queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`)
	}
	held := 0
	for n := range jobs / 6 {
		of := job.LimitOf{Scope: []string{job.LaneScope, job.KindScope}[n%2], Name: []string{"default", "k"}[n%2], Key: []string{"*", "tenant-1"}[n/2%2]}
		change := job.KeyLimitChange{LimitOf: of, Slots: job.To(1 + n*7%5)}
		if n%5 == 4 {
			change.Slots = job.NoLimit[int]()
		}
		done, err := pods[n%2].Admin("ann").SetLimit(t.Context(), change)
		is.NoErr(err)
		held += done.Held
		for range 6 {
			ends <- struct{}{}
		}
	}
	close(ends)
	wg.Wait()
	pgtest.Wait(t, "all jobs end", func() bool { return ended() == jobs })
	is.True(held > 0)
	is.Equal(queryOne[int](t, pool, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`), 0)
	checkHistory(t, pool, pods[0])
}
