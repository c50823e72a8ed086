package job

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff computes the delay before the next attempt. The delay starts at Base and doubles with every attempt up to Cap. Jitter randomizes
// the delay so that jobs that failed together do not all retry at once.
type Backoff struct {
	Base   time.Duration // delay after the first attempt; default 1s
	Cap    time.Duration // longest delay; default 10m
	Jitter float64       // random fraction of the delay, 0 to 1; default 0.2; negative means none
}

// Wait returns the delay after the given attempt, counted from 1: min(Cap, Base · 2^(attempt−1)), reduced by a random fraction of at most
// Jitter. u is a random number in [0, 1); the result is deterministic for a given u.
func (b Backoff) Wait(attempt int, u float64) time.Duration {
	base, limit, jitter := b.Base, b.Cap, b.Jitter
	if base <= 0 {
		base = time.Second
	}
	if limit <= 0 {
		limit = 10 * time.Minute
	}
	switch {
	case jitter == 0:
		jitter = 0.2
	case jitter < 0 || math.IsNaN(jitter):
		jitter = 0
	}
	wait := math.Min(float64(limit), float64(base)*math.Pow(2, float64(max(attempt, 1)-1)))
	if wait *= 1 - min(jitter, 1)*u; wait >= math.MaxInt64 {
		return math.MaxInt64 // a larger value would overflow
	}
	return time.Duration(wait)
}

// Random returns the delay after the given attempt with random jitter.
func (b Backoff) Random(attempt int) time.Duration { return b.Wait(attempt, rand.Float64()) } // #nosec G404 -- jitter
