// Package inside gives packages of this module the parts of a *runner.Runner that hosts have no use for: the API reads its store and its
// feed, the command line wakes the pods, remote workers are served by its pod, tests look into the tables. Package runner sets the hook; see ADR 0029. Before a new use,
// consider a method of runner.Admin.
package inside

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store"
)

// Parts are the insides of a runner.
type Parts struct {
	Pod   *pod.Pod
	Store *store.Store // for short reads and commands
	Slow  *store.Store // for reads that may take long: they leave a connection to the others
	Feed  *feed.Feed   // reads nothing while no client streams

	// Handles reports whether a handler of a kind is registered, whether or not Options.Kinds lets this runner run it.
	Handles func(kind string) bool
	// Secrets returns JSON pointers to the secret arguments of a kind, see runner.Secrets. They are unknown for kinds without a handler
	// here, and for those whose type of arguments does not name them.
	Secrets func(kind string) (pointers []string, known bool)
	// Declare writes the schedules that the program declares into the database, as Run does first.
	Declare func(ctx context.Context) error
}

// Runner is a *runner.Runner, which this package cannot import. The methods let the compiler refuse most else.
type Runner interface {
	Boot() string
	PodName() string
}

// Of returns the parts of a *runner.Runner, and panics for another type. Package runner sets it.
var Of func(Runner) Parts
