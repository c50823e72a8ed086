//go:build long

package store_test

import "time"

// histories is the number of random histories in the long test run.
const histories = 3000

// races is the number of times that operations race for the same rows.
const races = 12

// patience is the time after which the test starts no more histories.
const patience = 10 * time.Minute

// outages is the number of times that the connections break before a read and before a heartbeat.
const outages = 3

// pairEnds lists the ways in which the first of two operations on the same row ends: with a commit (true) or a rollback (false).
var pairEnds = []bool{true, false}

// startsOf returns the states in which the row can be when the first of two operations begins.
func startsOf(v pairOperation) []string { return v.from }

// runsPair reports whether the pair of operations i and k runs in this order.
func runsPair(_, _ int) bool { return true }

// keySeeds returns the first and the last seed of the random histories of keys.
func keySeeds() (first, last uint64) {
	first = uint64(time.Now().UnixNano())
	return first, first + 400
}

// keyRounds is the number of rounds of each process that competes for the places of keys.
const keyRounds = 400
