package pgtest

import (
	"testing"
	"time"
)

const (
	waitEvery  = 5 * time.Millisecond
	waitLater  = 20 * time.Millisecond // most conditions are queries, and many tests wait at the same time
	waitLong   = 200 * time.Millisecond
	waitAtMost = 3 * time.Minute // enough for a machine that is several times slower than usual
)

// Wait waits until cond returns true. If that takes more than three minutes, it fails the test; what names the condition in the failure message.
// cond is called in the test's goroutine every 5 ms, and after a while every 20 ms.
func Wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	WaitFor(t, waitAtMost, what, cond)
}

// WaitFor is like Wait with a different limit.
func WaitFor(t testing.TB, atMost time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for began := time.Now(); !cond(); <-tick.C {
		switch waited := time.Since(began); {
		case waited > atMost:
			t.Fatalf("timed out after %s: %s", atMost, what)
		case waited > waitLong:
			tick.Reset(waitLater)
		}
	}
}
