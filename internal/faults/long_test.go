//go:build long

package faults

import "time"

// cutFor is the duration for which the test keeps cutting connections.
const cutFor = 20 * time.Second

// exampleSeeds is the number of runs in which the example's pods are killed at random times.
const exampleSeeds = 20
