// Package inside gives packages of this module access to the parts of a *runner.Runner that hosts do not need. The API reads its store and
// feed, the command line wakes its pods, remote/internal/host serves remote workers on its pod, and tests read its tables. Package runner sets the
// hook; see ADR 0029. Before adding a new use, consider adding a method to runner.Admin.
package inside

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store"
)

// Parts are the internal parts of a runner.
type Parts struct {
	Pod   *pod.Pod
	Store *store.Store // for short reads and commands
	Slow  *store.Store // for reads that can take a long time, so that a connection stays free for others
	Feed  *feed.Feed   // reads nothing while there are no clients

	// Handles reports whether a handler for a kind is registered, even if Options.Kinds excludes the kind from this runner.
	Handles func(kind string) bool
	// Secrets returns JSON pointers to a kind's secret arguments; see runner.Secrets. known is false if the kind has no handler here, or if
	// its argument type does not mark secrets.
	Secrets func(kind string) (pointers []string, known bool)
	// Declare writes the schedules that the program declares to the database, as Run does at startup.
	Declare func(ctx context.Context) error
}

// Runner is a *runner.Runner, which this package cannot import. Its methods let the compiler reject most other types.
type Runner interface {
	Boot() string
	PodName() string
}

// Of returns the parts of a *runner.Runner. It panics for any other type. Package runner sets this variable.
var Of func(Runner) Parts
