//go:build long

package faults

import "time"

// cutFor is how long connections are cut.
const cutFor = 20 * time.Second

// exampleSeeds is how many times the example's pods are killed at random moments.
const exampleSeeds = 20
