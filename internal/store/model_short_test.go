//go:build !long

package store_test

import "time"

// histories is the number of random histories. They have 30 steps on average, and each step takes 2 to 4 ms.
const histories = 15

// patience is how long the test continues to start new histories.
const patience = 20 * time.Second

// pairEnds lists how the first of two operations on one row ends. The long test run adds the rollback.
var pairEnds = []bool{true}

// startsOf returns the state from which the first of two operations on one row begins. The long test run has all states in which it writes.
func startsOf(v pairOperation) []string { return v.from[:1] }

// runsPair reports whether the pair of operations i and k runs in this order. The long test run has all pairs in both orders.
func runsPair(i, k int) bool { return i == k || ((i+k)%2 == 0) == (i < k) }
