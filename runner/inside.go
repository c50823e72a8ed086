package runner

import "github.com/trapeze-run/trapeze/internal/inside"

func init() {
	inside.Of = func(it inside.Runner) inside.Parts {
		r := it.(*Runner)
		return inside.Parts{Store: r.front, Feed: r.feed, Handles: r.handles, Secrets: r.secrets}
	}
}
