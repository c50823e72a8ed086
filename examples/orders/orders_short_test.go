//go:build !long

package main

import "github.com/trapeze-run/trapeze/runner/runnertest"

// deaths lists the points at which pods die: here, when the handler has called the provider but its commit does not arrive. The long test
// run covers all points.
var deaths = []runnertest.Point{runnertest.DuringCommit}
