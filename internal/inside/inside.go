// Package inside gives packages of this module access to parts of a *runner.Runner that hosts do not need. The API reads the runner's store
// and feed, the command line wakes its pods, remote/internal/host serves remote workers on its pod, and tests read its tables. Package
// runner provides the access by setting [Of]. Before adding a new use, consider adding a method to admin.Admin.
package inside

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
)

// Parts are a runner's internal parts.
type Parts struct {
	Pod   *pod.Pod
	Store *store.Store // for short reads and commands
	Slow  *store.Store // for reads that can take long; keeps a connection free for the others
	Feed  *feed.Feed   // reads nothing while there are no clients

	// Handles reports whether a handler is registered for a kind, even if Options.Kinds excludes the kind from this runner.
	Handles func(kind string) bool
	// Secrets returns JSON pointers to a kind's secret arguments (see runner.Secrets), and the declared members of the arguments of a kind
	// with secrets. The known result is false if the kind has no handler here, or if its argument type does not mark secrets.
	Secrets func(kind string) (pointers []string, declared *text.Shape, known bool)
	// Check returns all mistakes in the registered handlers and declared schedules as one error, as Run does.
	Check func() error
	// Declare writes the program's declared schedules to the database, as Run does at startup.
	Declare func(ctx context.Context) error
}

// Runner stands for a *runner.Runner, which this package cannot import. Its methods make the compiler reject most other types.
type Runner interface {
	PodID() string
	PodName() string
}

// Of returns the parts of a *runner.Runner, and panics for any other type. Package runner sets this variable.
var Of func(Runner) Parts
