package runnertest_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// double is a testing.TB that records failures, for tests that are expected to fail.
type double struct {
	testing.TB
	said     []string
	cleanups []func()
}

func (d *double) Helper()           {}
func (d *double) Cleanup(do func()) { d.cleanups = append(d.cleanups, do) }
func (d *double) Errorf(format string, args ...any) {
	d.said = append(d.said, fmt.Sprintf(format, args...))
}
func (d *double) Fatalf(format string, args ...any) {
	d.Errorf(format, args...)
	runtime.Goexit()
}

// failing runs a test to completion and returns its failure messages.
func failing(t *testing.T, test func(t testing.TB)) string {
	t.Helper()
	d := &double{TB: t}
	run := func(do func()) {
		done := make(chan struct{})
		go func() { defer close(done); do() }()
		<-done
	}
	run(func() { test(d) })
	for _, do := range slices.Backward(d.cleanups) {
		run(do)
	}
	return strings.Join(d.said, "\n")
}

func TestHarnessDeathNotReached(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	said := failing(t, func(t testing.TB) {
		h := runnertest.New(t, effects(t.(*double).TB.(*testing.T)), runner.Options{}, steps)
		h.DieAt(runnertest.AfterFirstCommit, "no such kind")
		h.Enqueue(last{})
		h.RunUntilIdle()
	})
	is.Equal(said, "runnertest: no pod died mid-step of no such kind: no job reached that point")
	said = failing(t, func(t testing.TB) {
		runnertest.New(t, effects(t.(*double).TB.(*testing.T)), runner.Options{}, func(r *runner.Runner) {
			runner.Handle[last](r, nil)
			r.DeclareSchedule("s", "@daily", nil)
			r.DeclareSchedule("s", "@daily", last{})
		})
	})
	for _, mistake := range []string{`the handler of kind "last" is nil`, `schedule "s" is declared twice`, `(schedule "s")`} {
		is.True(strings.Contains(said, mistake)) // the harness reports them before any job runs
	}
}

func TestHarnessFailureMessages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	said := failing(t, func(t testing.TB) {
		h := runnertest.New(t, pool, runner.Options{}, steps)
		h.RequireState(h.Enqueue(last{}), job.Succeeded)
	})
	is.True(strings.Contains(said, "(last) is pending, want succeeded")) // the message includes the actual state
	said = failing(t, func(t testing.TB) {
		h := runnertest.New(t, pool, runner.Options{}, steps)
		h.Enqueue(step{Name: "a"})
		is.Equal(h.RequireEnqueued(step{Name: "a"}).State, job.Pending) // RequireEnqueued returns an existing job
		h.RequireEnqueued(step{Name: "b"})
	})
	is.True(strings.HasPrefix(said, `runnertest: no job step with {"Name":"b"} is enqueued; jobs of this kind:`)) // the message lists the jobs that do exist
	is.True(strings.HasSuffix(said, `: step {"Name":"a"}, pending`))
}

func TestHarnessIdleWithBlockedJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	h := runnertest.New(t, pool, runner.Options{}, steps)
	foreign := h.Enqueue(runner.Raw{Name: "elsewhere"}, runner.AllowUnregistered())
	h.RunUntilIdle()
	h.RequireState(foreign, job.Pending)
	_, err := pool.Exec(t.Context(), `update `+h.Schema()+`.queue_state set paused = true`)
	is.NoErr(err)
	paused := h.Enqueue(last{})
	h.RunUntilIdle()
	h.RequireState(paused, job.Pending)
}
