package runnertest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// CallBatch calls a batch function once with all jobs, like [Call], and returns a record for each job, in the order of args. Pass one claim
// for each job, or none. By default, the jobs have the IDs 1, 2 and so on. If the function panics or does not return one result per job,
// CallBatch calls it again for each job alone, as on a pod. A job that has crashed a pod, or whose Claim.Context has ended, is not part of the shared
// call. The function runs on other goroutines than the test's.
func CallBatch[A job.Args](t testing.TB, handler runner.BatchFunc[A], args []A, claims ...CallOptions) []Run {
	t.Helper()
	if len(claims) == 0 {
		claims = make([]CallOptions, len(args))
	}
	if len(args) == 0 || len(claims) != len(args) {
		t.Fatalf("runnertest: CallBatch with %d claims for %d jobs, want at least one job, and one claim for each", len(claims), len(args))
	}
	claims = slices.Clone(claims)
	shared, place := 0, map[int64]int{} // the jobs' indexes by ID
	for i := range claims {
		c := &claims[i]
		orElse(&c.ID, int64(i+1))
		if place[c.ID] = i; len(place) != i+1 || c.Key != claims[0].Key {
			t.Fatalf("runnertest: CallBatch needs jobs with different IDs and the same key, job %d has ID %d and key %q", i+1, c.ID, c.Key)
		}
		if c.Crashes == 0 && (c.Context == nil || c.Context.Err() == nil) {
			shared++
		}
	}
	r := withoutDatabase(t)
	defer r.Close()
	inOrder := func(ctx context.Context, jobs []*runner.Job[A]) []runner.BatchResult {
		slices.SortFunc(jobs, func(a, b *runner.Job[A]) int { return place[a.ID()] - place[b.ID()] })
		return handler(ctx, jobs)
	}
	runner.HandleBatch(r, inOrder, runner.BatchSize(max(shared, 1)), runner.BatchWait(10*time.Second))
	calls := make([]*called, len(args))
	for i := range args {
		calls[i] = newCalled(t, r, (*new(A)).Kind(), args[i], claims[i])
	}
	var calling sync.WaitGroup
	for _, c := range calls {
		calling.Go(c.call)
	}
	calling.Wait()
	if t.Failed() {
		t.FailNow() // the function may have called it on another goroutine
	}
	runs := make([]Run, len(calls))
	for i, c := range calls {
		runs[i] = c.record(t)
	}
	return runs
}
