//go:build !linux

package main

import "time"

// waitUntil waits until a moment, as exactly as a timer of the Go runtime can.
func waitUntil(until time.Time) { time.Sleep(time.Until(until)) }

// ownCPU is not known here.
func ownCPU() (used time.Duration, known bool) { return 0, false }
