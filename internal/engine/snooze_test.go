package engine

import (
	"math"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestSnoozeBackoffDelayLimit(t *testing.T) {
	is := is.New(t)
	for n, want := range map[int]time.Duration{-1: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 4: 8 * time.Minute,
		5: 10 * time.Minute, 1 << 30: 10 * time.Minute} {
		is.Equal(snoozeWait(time.Minute, n), want) // min(10m, d · 2ⁿ⁻¹)
	}
	is.Equal(snoozeWait(time.Hour, 1), time.Hour) // never shorter than requested
	is.Equal(snoozeWait(time.Hour, 9), time.Hour)
	is.Equal(snoozeWait(1<<62, 1<<30), time.Duration(1<<62))
	is.Equal(snoozeWait(math.MaxInt64, 1), time.Duration(math.MaxInt64)) // no overflow
	is.Equal(snoozeWait(0, 1<<30), time.Duration(0))                     // not NaN
}
