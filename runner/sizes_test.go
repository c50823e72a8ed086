//go:build !long

package runner_test

import "time"

// Sizes of tests that consist of many random or repeated steps. The long test run uses larger sizes.
const (
	faultRounds = 5  // each of the five faults once
	faultJobs   = 20 // submitted in each round
	cutRounds   = 3
	sqlRounds   = 60 // transactions, of which a quarter lose their client
	historyJobs = 60
	limitedJobs = 150 // six for each change of a limit
	racingJobs  = 20  // submitted by each of eight goroutines
	narrowJobs  = 80
	fireSeconds = 6
	pathChains  = 3 // chains that run by polling, and again by the fast path

	// patience is the time after which no new attempt to refute a property is started.
	patience = time.Second
)

// someOf returns the named cases of a test. The long test run uses all cases.
func someOf[C any](cases map[string]C, names ...string) map[string]C {
	some := map[string]C{}
	for _, name := range names {
		some[name] = cases[name]
	}
	return some
}

// firstOf returns the first n cases of a test. The long test run uses all cases.
func firstOf[C any](n int, cases ...C) []C { return cases[:n] }
