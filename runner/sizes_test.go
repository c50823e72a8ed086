//go:build !long

package runner_test

import "time"

// The sizes of tests that consist of many random or repeated steps. The long test run uses larger ones.
const (
	faultRounds = 5 // each of the five faults once
	cutRounds   = 3
	sqlRounds   = 60 // transactions, of which a quarter lose their client

	// patience is the time after which no new attempts to refute a property are started.
	patience = 2 * time.Second
)
