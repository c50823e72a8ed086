// Package conformance runs the same handlers on each engine, Trapeze's pods and Temporal, and expects the same results. A case whose
// outcome differs on Temporal describes the difference, and docs/temporal.md lists it.
//
// The package contains only tests. A case registers its handlers with package runner and uses only the public API, so that it does not
// depend on the engine.
package conformance
