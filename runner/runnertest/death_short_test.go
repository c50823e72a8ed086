//go:build !long

package runnertest_test

import "github.com/trapeze-run/trapeze/runner/runnertest"

// chainDeaths returns the kind of the step of the chain during which the pod dies at a point. The long test run covers both steps for each
// point.
func chainDeaths(at runnertest.Point) []string {
	if at == runnertest.AfterClaim || at == runnertest.BeforeFinish {
		return []string{"last"}
	}
	return []string{"first"} // has a checkpoint and a next step
}
