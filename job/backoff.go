package job

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is the wait before the next attempt: Base doubled with every attempt, capped, and spread by Jitter so that
// jobs which failed together do not come back together.
type Backoff struct {
	Base   time.Duration // wait after the first attempt; default 1s
	Cap    time.Duration // longest wait; default 10m
	Jitter float64       // share of the wait that is random, 0 to 1; default 0.2; negative = none
}

// Wait returns the wait after the given attempt, counted from 1, for a random number u in [0, 1): a pure function.
// wait = min(Cap, Base · 2^(attempt−1)), less up to Jitter of itself.
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
	case jitter < 0:
		jitter = 0
	}
	wait := math.Min(float64(limit), float64(base)*math.Pow(2, float64(max(attempt, 1)-1)))
	if wait *= 1 - min(jitter, 1)*u; wait >= math.MaxInt64 {
		return math.MaxInt64 // more would be less than nothing
	}
	return time.Duration(wait)
}

// Random returns a wait with its jitter drawn.
func (b Backoff) Random(attempt int) time.Duration { return b.Wait(attempt, rand.Float64()) } // #nosec G404 -- jitter

// longestPutOff is the longest wait of a job that is put off again and again, unless its handler asks for a longer one.
const longestPutOff = 10 * time.Minute

// PutOff is the wait of a job whose handler asks for the n-th time, counted from 1, to be called a time d later: a pure
// function, min(max(10m, d), d · 2ⁿ⁻¹), without jitter; 0 when d is negative.
func PutOff(d time.Duration, n int) time.Duration {
	switch {
	case d <= 0:
		return 0
	case d >= longestPutOff:
		return d // not by way of a float: the longest durations become negative there
	}
	return time.Duration(math.Min(float64(longestPutOff), float64(d)*math.Pow(2, float64(max(n, 1)-1))))
}
