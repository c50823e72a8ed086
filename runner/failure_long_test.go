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
	wait, _ := latch(t)
	falls := newRunner(t, cut, runner.Options{PodName: "falls", MaxCrashes: 1}, map[string]handler{"after": succeed})
	runner.HandleRaw(falls, "k", waitOn(wait), runner.OnFailure(rawArgs("after", `"the kind's"`)))
	run(t, falls)
	other := start(t, direct, runner.Options{PodName: "other", MaxCrashes: 1}, map[string]handler{"else": succeed})
	job1, job2 := enqueueStarted(t, falls, rawArgs("k")), enqueueStarted(t, falls, rawArgs("k"), runner.OnFailure(rawArgs("after", `"its own"`)))
	proxy.Blackhole()
	for id, want := range map[int64]string{job1: `after"the kind's"`, job2: `after"its own"`} {
		j := waitEnded(t, other, id)
		is.Equal(reasonOf(j), job.ReasonCrashed)
		is.Equal(followers(t, direct, id), []string{want})
	}
	proxy.Pass()
	quiet(t, direct)
}

func TestFailureJobAfterMaxAge(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, _ := latch(t)
	r := start(t, pool, runner.Options{Slots: 1, MaxAge: time.Second}, map[string]handler{"k": waitOn(wait), "after": succeed})
	runs := enqueue(t, r, rawArgs("k"), runner.OnFailure(rawArgs("after")))
	waits := enqueue(t, r, rawArgs("k"), runner.OnFailure(rawArgs("after")))
	for _, id := range []int64{runs, waits} {
		is.Equal(reasonOf(waitEnded(t, r, id)), job.ReasonDeadline)
		is.Equal(len(followers(t, pool, id)), 1)
	}
}

func TestFailureJobAfterApprovalTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{ApprovalTTL: 50 * time.Millisecond}, map[string]handler{"k": succeed, "after": succeed})
	failed := enqueue(t, r, rawArgs("k"), runner.NeedsApproval(), runner.OnFailure(rawArgs("after")))
	either := enqueue(t, r, rawArgs("k"), runner.NeedsApproval(), runner.OnFailureOrCancel(rawArgs("after")))
	run(t, r)
	for id, want := range map[int64]int{failed: 0, either: 1} {
		is.Equal(reasonOf(waitEnded(t, r, id)), job.ReasonExpired)
		is.Equal(len(followers(t, pool, id)), want)
	}
	quiet(t, pool)
}
