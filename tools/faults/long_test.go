//go:build long

package faults

import "time"

// cutFor is the period during which the test keeps cutting connections.
const cutFor = 20 * time.Second

// exampleSeeds is the number of runs that kill the example's pods at random times.
const exampleSeeds = 20
