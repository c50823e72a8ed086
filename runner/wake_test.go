package runner_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestAProgramThatOnlySubmitsWakesThePods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	pod, err := runner.New(pool, runner.Options{PollEvery: time.Hour})
	is.NoErr(err)
	runner.Handle(pod, func(context.Context, *runner.Job[first]) (*runner.Outcome, error) { return nil, nil })
	run(t, pod)
	submitter, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer submitter.Close()
	made, err := submitter.Enqueue(t.Context(), first{}, runner.Foreign())
	is.NoErr(err)
	is.Equal(ended(t, pod, made.ID).State, job.Succeeded) // the job ends long before the next poll
}

// With onlyWoken, pods never poll during a test, so jobs start only after wake-ups. Each pod learns its place in the fleet from its
// heartbeats.
var onlyWoken = runner.Options{Slots: 1, HeartbeatEvery: 100 * time.Millisecond, LeaseFor: time.Minute, PollEvery: time.Hour}

// Eight pods are the front of the fleet and hear every notification. They are usually busy, so they pass notifications on, first to each
// other and then to the rest.
func TestAJobFindsTheOnlyPodWithAFreeSlot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, release := gate(t)
	var pods []*runner.Runner
	const front = 8
	for range front + 2 {
		pods = append(pods, start(t, pool, onlyWoken, map[string]does{"hold": until(hold), "k": nothing}))
	}
	slices.SortFunc(pods, func(a, b *runner.Runner) int { return strings.Compare(a.Boot(), b.Boot()) })
	hear := func() (list string) { // returns an F for each pod of the front that hears a notification, and an R for each other pod that does
		var before []float64
		for _, r := range pods {
			before = append(before, value(t, r, "trapeze_notifications_total"))
		}
		exec(t, pool, `select pg_notify('trapeze_wake', '')`)
		pgtest.Wait(t, "the first pod hears it", func() bool { return value(t, pods[0], "trapeze_notifications_total") > before[0] })
		for i, r := range pods {
			if value(t, r, "trapeze_notifications_total") > before[i] {
				list += string("FR"[i/front])
			}
		}
		return list
	}
	pgtest.Wait(t, "only the front hears notifications", func() bool { return hear() == "FFFFFFFF" })
	for _, r := range pods[:len(pods)-1] {
		begun(t, r, of("hold"))
	}
	other := make1(t, pool, runner.Options{}, nil)
	for range 3 {
		id := enqueue(t, other, of("k"), runner.Foreign())
		is.Equal(ended(t, other, id).State, job.Succeeded)
	}
	for _, r := range pods[:2] {
		_, err := r.Admin().DrainPod(t.Context(), r.Boot(), 0, "test")
		is.NoErr(err)
	}
	pgtest.Wait(t, "the rest takes the place of the drained pods", func() bool { return strings.HasSuffix(hear(), "RR") })
	release()
}

// All pods of the front except one are dead, but their leases have not expired yet. The delayed claim of the living pod finds the jobs.
func TestAJobStartsSoonAlthoughThePodsThatAreNotifiedFirstAreDead(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	start(t, pool, onlyWoken, map[string]does{"k": nothing})
	exec(t, pool, `insert into trapeze.pods (boot, name, version, kinds, slots, limits, lease_until)
		select gen_random_uuid(), 'dead', p.version, p.kinds, p.slots, p.limits, now() + interval '1 minute' from trapeze.pods p, generate_series(1, 7)`)
	beaten := func() (at time.Time) {
		return one[time.Time](t, pool, `select lease_until from trapeze.pods where name <> 'dead'`)
	}
	since := beaten()
	pgtest.Wait(t, "two heartbeats", func() bool { return beaten().After(since.Add(150 * time.Millisecond)) })
	other := make1(t, pool, runner.Options{}, nil)
	for range 5 {
		id := enqueue(t, other, of("k"), runner.Foreign())
		is.Equal(ended(t, other, id).State, job.Succeeded)
	}
}

// A program that only submits jobs merges wake-ups that shortly follow the first. Close sends any that are still pending.
func TestWakeUpsOfAProgramThatOnlySubmitsAreMergedAndNotLost(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, onlyWoken, map[string]does{"k": nothing})
	other, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	var last int64
	for range 20 {
		last = enqueue(t, other, of("k"), runner.Foreign())
	}
	other.Close()
	is.Equal(ended(t, r, last).State, job.Succeeded)
	pgtest.Wait(t, "all jobs have ended", func() bool { return one[int](t, pool, `select count(*)::int from trapeze.done`) == 20 })
}
