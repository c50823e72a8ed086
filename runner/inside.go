package runner

import "github.com/trapeze-run/trapeze/internal/inside"

// This hook gives other packages of the module access to a Runner's pod; see package inside.
func init() {
	inside.Of = func(it inside.Runner) inside.Parts {
		r := it.(*Runner)
		return inside.Parts{Pod: r.pod, Store: r.pod.Commands, Slow: r.pod.Slow, Feed: r.pod.Feed, Handles: r.handles, Secrets: r.secrets, Declare: r.declareNow}
	}
}
