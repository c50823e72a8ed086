package main

import (
	"syscall"
	"time"
)

// waitUntil blocks until the given time, with a precision of about 0.1 ms. In an idle process, the Go runtime's timers may fire up to a
// millisecond late.
func waitUntil(until time.Time) {
	for left := time.Until(until); left > 0; left = time.Until(until) {
		for short := syscall.NsecToTimespec(int64(min(left, 100*time.Millisecond))); syscall.Nanosleep(&short, &short) == syscall.EINTR; {
		}
	}
}

// ownCPU returns the CPU time that this process has used.
func ownCPU() (used time.Duration, known bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
