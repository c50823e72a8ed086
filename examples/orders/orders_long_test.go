//go:build long

package main

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// deaths lists the points at which pods die.
var deaths = []runnertest.Point{runnertest.AfterClaim, runnertest.BeforeFinish, runnertest.InFlush, runnertest.AfterFinish}

// A compensation survives more crashes than other jobs, because its kind is registered with a higher crash limit.
func TestAReleaseThatKillsFivePodsStillHappens(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	for range 5 {
		s.DieAt(runnertest.BeforeFinish, "release")
	}
	s.order("moon", "lamp", "moon", "visa", 4200)
	s.finish()
	is.Equal(s.Deaths(), 5)
	is.Equal(s.state("moon"), "refunded")
	s.settled()
}
