//go:build !long

package faults

import "time"

// terminateFor is how long connections are terminated.
const terminateFor = 5 * time.Second
