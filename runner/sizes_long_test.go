//go:build long

package runner_test

import "time"

// Sizes for the long test run of tests that consist of many random or repeated steps.
const (
	faultRounds = 20
	faultJobs   = 30
	cutRounds   = 8
	sqlRounds   = 500
	historyJobs = 300
	limitedJobs = 300
	racingJobs  = 100
	narrowJobs  = 200
	fireSeconds = 8
	pathChains  = 10

	cancelRounds = 200

	// patience is the time after which no new attempt to refute a property is started.
	patience = 30 * time.Second
)

// someOf returns all cases of a test.
func someOf[C any](cases map[string]C, _ ...string) map[string]C { return cases }

// firstOf returns all cases of a test.
func firstOf[C any](_ int, cases ...C) []C { return cases }
