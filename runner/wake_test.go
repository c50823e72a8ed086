package runner_test

import (
	"fmt"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Six of seven pods are busy, but their latest heartbeats reported a free slot. A notification reaches two pods, usually busy ones.
func TestAJobFindsTheOnlyPodWithAFreeSlot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, _ := gate(t)
	o := rarely
	o.Slots = 1
	var pods []*runner.Runner
	for i := range 7 {
		o.Name = fmt.Sprintf("pod-%d", i)
		pods = append(pods, start(t, pool, o, map[string]does{"hold": until(hold), "k": nothing}))
	}
	pgtest.Wait(t, "all pods can be woken", func() bool {
		return one[int](t, pool, `select count(*)::int from trapeze.pods where wake_channel <> '' and free_slots = 1`) == len(pods)
	})
	for _, r := range pods[:6] {
		begun(t, r, of("hold"))
	}
	is.Equal(one[int](t, pool, `select count(*)::int from trapeze.pods where free_slots = 1`), len(pods)) // no heartbeat has been sent since
	other := make1(t, pool, runner.Options{}, nil)
	id := enqueue(t, other, of("k"), runner.Foreign())
	is.Equal(ended(t, other, id).State, job.Succeeded)
}

// While all of a pod's slots are in use, notifications reach other pods. So the pod looks for jobs when a slot is free again.
func TestAPodThatWasFullLooksForJobsOfWhichItWasNotNotified(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, release := gate(t)
	o := rarely
	o.Slots = 1
	r := start(t, pool, o, map[string]does{"hold": until(hold), "k": nothing})
	begun(t, r, of("hold"))
	other := make1(t, pool, runner.Options{DirectURL: "off"}, nil) // notifies no pod
	id := enqueue(t, other, of("k"), runner.Foreign())
	release()
	is.Equal(ended(t, other, id).State, job.Succeeded)
}

// A process that only submits jobs sends its first wake-up at once, and merges those that follow within a short time.
func TestWakeUpsOfAProcessThatOnlySubmitsAreMerged(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, rarely, map[string]does{"k": nothing})
	pgtest.Wait(t, "the pod can be woken", func() bool {
		return one[int](t, pool, `select count(*)::int from trapeze.pods where wake_channel <> ''`) == 1
	})
	other, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	var last int64
	for range 20 {
		last = enqueue(t, other, of("k"), runner.Foreign())
	}
	other.Close() // sends what was delayed
	is.Equal(ended(t, r, last).State, job.Succeeded)
	pgtest.Wait(t, "all jobs have ended", func() bool {
		return one[int](t, pool, `select count(*)::int from trapeze.done where state = 'succeeded'`) == 20
	})
}
