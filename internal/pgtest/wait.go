package pgtest

import (
	"testing"
	"time"
)

const (
	waitEvery  = 5 * time.Millisecond
	waitAtMost = 20 * time.Second
)

// Wait returns once cond is true, and ends the test with what, the thing waited for, when that takes more than 20
// seconds. cond is called every 5 ms, in the test's own goroutine.
func Wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	WaitFor(t, waitAtMost, what, cond)
}

// WaitFor is Wait with another limit.
func WaitFor(t testing.TB, atMost time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(atMost); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", atMost, what)
		}
	}
}
