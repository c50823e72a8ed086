// Package inside gives packages of this module access to the parts of a *runner.Runner that hosts do not need. The API reads its store and
// its feed, the command line wakes the pods, its pod serves remote workers, and tests read the tables. Package runner sets the hook; see
// ADR 0029. Before a new use, consider a method of runner.Admin.
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
	Slow  *store.Store // for reads that may take long, so that a connection is left for others
	Feed  *feed.Feed   // reads nothing while no client streams

	// Handles reports whether a handler of a kind is registered, whether or not Options.Kinds lets this runner run it.
	Handles func(kind string) bool
	// Secrets returns JSON pointers to the secret arguments of a kind, see runner.Secrets. They are unknown for kinds without a handler
	// here, and for those whose type of arguments does not mark them.
	Secrets func(kind string) (pointers []string, known bool)
	// Declare writes the program's declared schedules to the database, as Run does at its start.
	Declare func(ctx context.Context) error
}

// Runner is a *runner.Runner, which this package cannot import. Its methods let the compiler reject most other types.
type Runner interface {
	Boot() string
	PodName() string
}

// Of returns the parts of a *runner.Runner, and panics for any other type. Package runner sets it.
var Of func(Runner) Parts
