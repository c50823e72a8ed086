//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The pod running the job dies, and the pod that recovers the job has a handler for neither kind.
func TestCrashLimitFailureJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	wait, _ := gate(t)
	falls := make1(t, cut, runner.Options{Name: "falls", MaxCrashes: 1}, map[string]does{"after": nothing})
	runner.HandleRaw(falls, "k", until(wait), runner.OnFailure(of("after", `"the kind's"`)))
	run(t, falls)
	other := start(t, direct, runner.Options{Name: "other", MaxCrashes: 1}, map[string]does{"else": nothing})
	job1, job2 := begun(t, falls, of("k")), begun(t, falls, of("k"), runner.OnFailure(of("after", `"its own"`)))
	proxy.Blackhole()
	for id, want := range map[int64]string{job1: `after"the kind's"`, job2: `after"its own"`} {
		j := ended(t, other, id)
		is.Equal(why(j), job.ReasonCrashed)
		is.Equal(followers(t, direct, id), []string{want})
	}
	proxy.Pass()
	quiet(t, direct)
}

func TestFailureJobAfterMaxAge(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, _ := gate(t)
	r := start(t, pool, runner.Options{Slots: 1, MaxAge: time.Second}, map[string]does{"k": until(wait), "after": nothing})
	runs := enqueue(t, r, of("k"), runner.OnFailure(of("after")))
	waits := enqueue(t, r, of("k"), runner.OnFailure(of("after")))
	for _, id := range []int64{runs, waits} {
		is.Equal(why(ended(t, r, id)), job.ReasonDeadline)
		is.Equal(len(followers(t, pool, id)), 1)
	}
}

func TestFailureJobAfterApprovalTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := make1(t, pool, runner.Options{ApprovalTTL: 50 * time.Millisecond}, map[string]does{"k": nothing, "after": nothing})
	failed := enqueue(t, r, of("k"), runner.NeedsApproval(), runner.OnFailure(of("after")))
	either := enqueue(t, r, of("k"), runner.NeedsApproval(), runner.OnFailureOrCancel(of("after")))
	run(t, r)
	for id, want := range map[int64]int{failed: 0, either: 1} {
		is.Equal(why(ended(t, r, id)), job.ReasonExpired)
		is.Equal(len(followers(t, pool, id)), want)
	}
	quiet(t, pool)
}
