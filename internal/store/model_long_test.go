//go:build long

package store_test

import "time"

// histories is how many random histories are tried in the long leg.
const histories = 3000

// patience is how long histories are begun.
const patience = 10 * time.Minute

// pairEnds are how the first of two verbs on one row ends: it commits, or rolls back.
var pairEnds = []bool{true, false}
