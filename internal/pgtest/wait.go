package pgtest

import (
	"testing"
	"time"
)

const (
	waitFirst  = 2 * time.Millisecond
	waitLast   = 25 * time.Millisecond // most conditions are queries, and many tests wait concurrently
	waitAtMost = 3 * time.Minute       // enough for a machine that is several times slower than usual
)

// Wait waits until cond returns true, and fails the test after three minutes. The failure message contains what, the name of the condition.
// Wait calls cond in the test's goroutine, at intervals that grow from 2 ms to 25 ms. The message also contains the results of state.
func Wait(t testing.TB, what string, cond func() bool, state ...func() string) {
	t.Helper()
	WaitFor(t, waitAtMost, what, cond, state...)
}

// WaitFor is like Wait, but with the time limit atMost.
func WaitFor(t testing.TB, atMost time.Duration, what string, cond func() bool, state ...func() string) {
	t.Helper()
	every := waitFirst
	tick := time.NewTicker(every)
	defer tick.Stop()
	for began := time.Now(); !cond(); <-tick.C {
		if time.Since(began) > atMost {
			for _, describe := range state {
				what += "\n" + describe()
			}
			t.Fatalf("timed out after %s: %s", atMost, what)
		}
		every = min(every*2, waitLast)
		tick.Reset(every)
	}
}
