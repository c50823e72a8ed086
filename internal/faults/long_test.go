//go:build long

package faults

import "time"

// terminateFor is how long connections are terminated.
const terminateFor = 20 * time.Second
