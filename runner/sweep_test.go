package runner_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// seldom is a poll interval that is longer than any test waits.
const seldom = 10 * time.Minute

func TestFreeJobsBehindBlockedJobs(t *testing.T) {
	t.Parallel()
	for name, block := range someOf(map[string]func(t *testing.T, submitter *runner.Runner){
		"of one busy subject":     func(t *testing.T, submitter *runner.Runner) { flood(t, submitter, 3500, "hot", runner.Subject("busy")) },
		"of a kind without a pod": func(t *testing.T, submitter *runner.Runner) { flood(t, submitter, 3500, "foreign") },
		"of both, at several priorities": func(t *testing.T, submitter *runner.Runner) {
			flood(t, submitter, 1200, "foreign", runner.Priority(50))
			flood(t, submitter, 1200, "hot", runner.Subject("busy"))
			flood(t, submitter, 1200, "foreign", runner.Priority(-50))
		},
	}, "of both, at several priorities") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			handlers := map[string]handler{"hot": succeed, "foreign": succeed, "free": succeed}
			submitter := newRunner(t, pool, runner.Options{}, handlers) // this runner is never started
			wait, _ := latch(t)
			holder := enqueue(t, submitter, rawArgs("hot"), runner.Subject("busy"), runner.Priority(100))
			var ran atomic.Int64
			r := start(t, pool, runner.Options{Slots: 4, PollInterval: seldom}, map[string]handler{
				"hot": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
				"free": func(context.Context, *raw) (*runner.Outcome, error) {
					ran.Add(1)
					return nil, nil
				},
			})
			pgtest.Wait(t, "the subject is busy", func() bool {
				j, err := r.GetJob(t.Context(), holder)
				return err == nil && j.State == job.Running
			})
			block(t, submitter)
			flood(t, submitter, 20, "free", runner.Priority(-60)) // behind all blocked jobs
			pgtest.WaitFor(t, 30*time.Second, "the jobs behind the blocked ones have run", func() bool { return ran.Load() == 20 })
			// Jobs submitted later must also be found, regardless of their priority.
			random := rand.New(rand.NewPCG(1, 2))
			for i := range int64(10) {
				priority := []int{100, 10, -60, -100}[random.IntN(4)]
				enqueue(t, submitter, rawArgs("free"), runner.Priority(priority))
				pgtest.WaitFor(t, 30*time.Second, "a job submitted later has run", func() bool { return ran.Load() == 21+i })
			}
		})
	}
}

func flood(t *testing.T, r *runner.Runner, n int, kind string, options ...runner.EnqueueOption) {
	t.Helper()
	if _, err := r.EnqueueMany(t.Context(), many(kind, n), options...); err != nil {
		t.Fatal(err)
	}
}
