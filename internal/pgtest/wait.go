package pgtest

import (
	"testing"
	"time"
)

const (
	waitEvery  = 5 * time.Millisecond
	waitLater  = 20 * time.Millisecond // most conditions are queries, and many tests wait at the same time
	waitLong   = 200 * time.Millisecond
	waitAtMost = time.Minute
)

// Wait returns once cond is true, and ends the test with what, the thing waited for, when that takes more than a
// minute. cond is called every 5 ms, and every 20 ms after a while, in the test's own goroutine.
func Wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	WaitFor(t, waitAtMost, what, cond)
}

// WaitFor is Wait with another limit.
func WaitFor(t testing.TB, atMost time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for began := time.Now(); !cond(); <-tick.C {
		switch waited := time.Since(began); {
		case waited > atMost:
			t.Fatalf("waited %s in vain: %s", atMost, what)
		case waited > waitLong:
			tick.Reset(waitLater)
		}
	}
}
