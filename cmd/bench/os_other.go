//go:build !linux

package main

import "time"

// waitUntil blocks until a given time, as exactly as a timer of the Go runtime can.
func waitUntil(until time.Time) { time.Sleep(time.Until(until)) }

// ownCPU reports that the processor time is unknown here.
func ownCPU() (used time.Duration, known bool) { return 0, false }
