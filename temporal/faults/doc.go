// Package faults kills pods, forwarders and the Temporal server, which run as real processes, and checks that each accepted job ends
// exactly once. Its tests also run the flights example on both engines.
//
// The package contains only tests. Tests with the build tag failpoints kill a pod at each step between PostgreSQL and Temporal.
package faults
