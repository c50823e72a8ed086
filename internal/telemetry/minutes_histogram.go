package telemetry

import (
	"math"
	"slices"
	"time"
)

const (
	// finest is the first bucket's upper limit.
	finest = 100 * time.Microsecond
	// buckets is the number of buckets, the last of which counts all durations above 14.9 hours.
	buckets = 60
)

// limits holds the upper limits of all buckets except the last. Each limit is √2 times the previous one.
var limits = func() (list [buckets - 1]time.Duration) {
	for i := range list {
		list[i] = time.Duration(math.Round(float64(finest) * math.Pow(2, float64(i)/2)))
	}
	return list
}()

// TimeBuckets counts durations in buckets on a fixed logarithmic scale, so that all pods' histograms can be added up. Empty buckets at the
// end are omitted, which keeps a histogram of short durations small.
type TimeBuckets []int64

// Observe counts a duration. It ignores negative durations, which mean unknown.
func (h *TimeBuckets) Observe(d time.Duration) {
	if d < 0 {
		return
	}
	i, _ := slices.BinarySearch(limits[:], d)
	h.grow(i + 1)
	(*h)[i]++
}

// Add adds the counts of other.
func (h *TimeBuckets) Add(other TimeBuckets) {
	h.grow(len(other))
	for i, n := range other {
		(*h)[i] += n
	}
}

func (h *TimeBuckets) grow(n int) {
	if more := n - len(*h); more > 0 {
		*h = append(*h, make(TimeBuckets, more)...)
	}
}

// Quantile returns the duration below which the given share of the durations lies, a fraction such as 0.95. It interpolates within a
// bucket, so the result is off by a factor of at most √2, except that in the first bucket it can be too short by a larger factor. Quantile
// returns false if the histogram is empty.
func (h TimeBuckets) Quantile(share float64) (time.Duration, bool) {
	var total int64
	for _, n := range h {
		total += n
	}
	left := share * float64(total)
	for i, n := range h {
		if n == 0 || float64(n) < left {
			left -= float64(n)
			continue
		}
		lower := time.Duration(0)
		if i > 0 {
			lower = limits[min(i, len(limits))-1]
		}
		if i >= len(limits) {
			return lower, true // the last bucket has no upper limit
		}
		return lower + time.Duration(left/float64(n)*float64(limits[i]-lower)), true
	}
	return 0, false
}
