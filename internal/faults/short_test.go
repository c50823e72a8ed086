//go:build !long

package faults

import "time"

// terminateFor is how long connections are terminated.
const terminateFor = 5 * time.Second

// stressFor is how long a pod has a hard time: longer than two leases.
const stressFor = 20 * time.Second

// exampleSeeds is how many times the example's pods are killed at random moments.
const exampleSeeds = 3
