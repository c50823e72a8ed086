package pgtest

import (
	"testing"
	"time"
)

const (
	waitFirst  = time.Millisecond
	waitLast   = 25 * time.Millisecond // most conditions are queries, and many tests wait at the same time
	waitAtMost = 3 * time.Minute       // enough for a machine that is several times slower than usual
)

// Wait waits until cond returns true. If that takes more than three minutes, it fails the test; what names the condition in the failure message.
// cond is called in the test's goroutine, first every millisecond and then less and less often, up to every 25 ms.
func Wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	WaitFor(t, waitAtMost, what, cond)
}

// WaitFor is like Wait with a different limit.
func WaitFor(t testing.TB, atMost time.Duration, what string, cond func() bool) {
	t.Helper()
	every := waitFirst
	tick := time.NewTicker(every)
	defer tick.Stop()
	for began := time.Now(); !cond(); <-tick.C {
		if time.Since(began) > atMost {
			t.Fatalf("timed out after %s: %s", atMost, what)
		}
		every = min(every*3/2, waitLast)
		tick.Reset(every)
	}
}
