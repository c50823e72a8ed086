//go:build long

package runnertest_test

import (
	"fmt"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestAFanOutIsTakenOverWhereverThePodDies(t *testing.T) {
	t.Parallel()
	for _, at := range points {
		for _, kind := range []string{"first", "step", "last"} {
			t.Run(fmt.Sprintf("%s of %s", at, kind), func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				pool := effects(t)
				h := runnertest.New(t, pool, runner.Options{Slots: 2}, steps)
				branches := []string{"b1", "b2", "b3", "b4"}
				id := h.Enqueue(first{step{Name: "a", Fan: branches, Then: "c"}})
				h.DieAt(at, kind)
				h.RunUntilIdle()
				is.Equal(h.Deaths(), 1)                                // the pod died as requested
				is.Equal(h.Pipeline(id).Status, job.PipelineSucceeded) // another pod took over
				for _, name := range append(branches, "a", "c") {
					is.Equal(count(t, pool, name), 1) // each step took effect once
				}
				is.Equal(len(h.Jobs("last")), 1) // there is only one join
			})
		}
	}
}
