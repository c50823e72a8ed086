//go:build !linux

package main

import "time"

// waitUntil blocks until the given time, with the precision of the Go runtime's timers.
func waitUntil(until time.Time) { time.Sleep(time.Until(until)) }

// ownCPU returns false, because the CPU time is not known on this system.
func ownCPU() (used time.Duration, known bool) { return 0, false }
