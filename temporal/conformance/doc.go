// Package conformance runs the same handlers with the same expectations on each engine: on Trapeze's pods, and on Temporal. A case that has
// a different outcome on Temporal names the difference, and docs/temporal.md lists it.
//
// The package contains only tests. A case registers its handlers with package runner and uses only the public API, so that it does not
// depend on the engine.
package conformance
