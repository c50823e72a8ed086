//go:build long

package runner_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Eight pods are the front of the fleet and hear every notification. They are busy, so they leave the jobs behind and notify all pods.
func TestSinglePodWithFreeSlot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, release := latch(t)
	var pods []*runner.Runner
	const front = 8
	for range front + 2 {
		pods = append(pods, start(t, pool, onlyWoken, map[string]handler{"hold": waitOn(hold), "k": succeed}))
	}
	slices.SortFunc(pods, func(a, b *runner.Runner) int { return strings.Compare(a.PodID(), b.PodID()) })
	hear := func() (list string) { // returns an F for each pod of the front that hears a notification, and an R for each other pod that does
		var before []float64
		for _, r := range pods {
			before = append(before, metricValue(t, r, "trapeze_notifications_total"))
		}
		exec(t, pool, `select pg_notify('trapeze_wake', '')`)
		pgtest.Wait(t, "the first pod hears it", func() bool { return metricValue(t, pods[0], "trapeze_notifications_total") > before[0] })
		for i, r := range pods {
			if metricValue(t, r, "trapeze_notifications_total") > before[i] {
				list += string("FR"[i/front])
			}
		}
		return list
	}
	pgtest.Wait(t, "only the front hears notifications", func() bool { return hear() == "FFFFFFFF" })
	for _, r := range pods[:len(pods)-1] {
		enqueueStarted(t, r, rawArgs("hold"))
	}
	other := newRunner(t, pool, runner.Options{}, nil)
	for range 3 {
		id := enqueue(t, other, rawArgs("k"), runner.AllowUnregistered())
		is.Equal(waitEnded(t, other, id).State, job.Succeeded)
	}
	for _, r := range pods[:2] {
		_, err := r.Admin("test").DrainPod(t.Context(), r.PodID(), 0)
		is.NoErr(err)
	}
	pgtest.Wait(t, "the rest takes the place of the drained pods", func() bool { return strings.HasSuffix(hear(), "RR") })
	release()
}
