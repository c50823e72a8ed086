//go:build !long

package store_test

import "time"

// histories is the number of random histories. They have 30 steps on average, and each step takes 2 to 4 ms.
const histories = 10

// patience is the time after which the test starts no more histories.
const patience = 20 * time.Second

// outages is the number of times that the connections break before a read and before a heartbeat.
const outages = 1

// pairEnds lists the ways in which the first of two operations on the same row ends, here only with a commit. The long test run adds the
// rollback.
var pairEnds = []bool{true}

// startsOf returns the state in which the row is when the first of two operations begins. The long test run covers all states in which that
// operation writes.
func startsOf(v pairOperation) []string { return v.from[:1] }

// runsPair reports whether the pair of operations i and k runs in this order. The long test run covers both orders of every pair.
func runsPair(i, k int) bool { return i == k || ((i+k)%2 == 0) == (i < k) }

// keySeeds returns the first and the last seed of the random histories of keys.
func keySeeds() (first, last uint64) { return 1, 4 }

// keyRounds is the number of rounds of each process that competes for the places of keys.
const keyRounds = 10
