//go:build long

package store_test

import "time"

// histories is the number of random histories in the long test run.
const histories = 3000

// races is the number of times that operations race for the same rows.
const races = 12

// patience is how long the test continues to start new histories.
const patience = 10 * time.Minute

// pairEnds lists how the first of two operations on one row ends: with a commit or a rollback.
var pairEnds = []bool{true, false}

// startsOf returns the states from which the first of two operations on one row begins.
func startsOf(v pairOperation) []string { return v.from }

// runsPair reports whether the pair of operations i and k runs in this order.
func runsPair(_, _ int) bool { return true }
