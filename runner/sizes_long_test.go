//go:build long

package runner_test

import "time"

// The sizes, in the long test run, of tests that consist of many random or repeated steps.
const (
	faultRounds = 20
	cutRounds   = 8
	sqlRounds   = 500

	// patience is the time after which no new attempts to refute a property are started.
	patience = 30 * time.Second
)
