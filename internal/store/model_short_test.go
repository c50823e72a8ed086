//go:build !long

package store_test

import "time"

// histories is how many random histories are tried: 30 steps each on average, 2 to 4 ms a step.
const histories = 30

// patience is how long histories are begun.
const patience = 20 * time.Second

// pairEnds are how the first of two verbs on one row ends: the long leg rolls it back as well.
var pairEnds = []bool{true}
