package telemetry

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestDurationBuckets(t *testing.T) {
	for _, c := range []struct {
		d      time.Duration
		bucket int
	}{
		{0, 0}, {time.Microsecond, 0}, {finest, 0}, {finest + 1, 1}, {2 * finest, 2}, {2*finest + 1, 3}, {time.Second, 27}, {22 * time.Hour, 59}, {math.MaxInt64, 59},
	} {
		is := is.New(t)
		var h TimeBuckets
		h.Observe(c.d)
		is.Equal(len(h), c.bucket+1) // buckets after the last used one are omitted
		is.Equal(h[c.bucket], int64(1))
	}
	is := is.New(t)
	var h TimeBuckets
	h.Observe(-1)
	is.Equal(len(h), 0) // an unknown duration is not counted
	_, known := h.Quantile(0.5)
	is.True(!known)
}

func TestQuantileAccuracy(t *testing.T) {
	is := is.New(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0)) // #nosec G404 -- a test
	var h, parts TimeBuckets
	var list []time.Duration
	for part := range 4 {
		var one TimeBuckets
		for range 500 {
			d := time.Duration(float64(finest) * math.Pow(10, float64(part)+r.Float64())) // 100 µs to 1 s, logarithmically uniform
			list = append(list, d)
			h.Observe(d)
			one.Observe(d)
		}
		parts.Add(one)
	}
	is.Equal(parts, h) // the histograms of the parts add up to the whole
	slices.Sort(list)
	for _, share := range []float64{0.01, 0.5, 0.9, 0.95, 0.999} {
		got, known := h.Quantile(share)
		is.True(known)
		exact := list[int(share*float64(len(list)))]
		off := math.Abs(math.Log2(float64(got) / float64(exact)))
		if off > 0.5 {
			t.Errorf("quantile %g is %s, the exact one is %s", share, got, exact)
		}
	}
	one := TimeBuckets{0, 0, 1}
	least, _ := one.Quantile(0)
	most, _ := one.Quantile(1)
	is.Equal([]time.Duration{least, most}, []time.Duration{limits[1], limits[2]}) // the quantiles lie within the only bucket in use
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestMinuteStatsWrittenOnce(t *testing.T) {
	is := is.New(t)
	c := NewMinuteCounter()
	c.Rows(noon.Add(20*time.Second), "pod", false)
	written := map[time.Time]int64{}
	for minute := range 3 {
		for range 10 {
			c.Count("default", "k", job.Succeeded, RunTimes{time.Millisecond, time.Second})
		}
		is.Equal(len(c.Rows(noon.Add(time.Duration(minute)*time.Minute+59*time.Second), "pod", false)), 0) // the minute is not over yet
		rows := c.Rows(noon.Add(time.Duration(minute+1)*time.Minute), "pod", false)
		is.Equal(len(rows), 1)
		is.Equal(*rows[0].PodID, "pod")
		written[rows[0].At] += rows[0].Jobs
		c.Written(len(rows))
	}
	c.Count("default", "k", job.Succeeded, NoRun) // would be lost if the process were killed now
	is.Equal(written, map[time.Time]int64{noon: 10, noon.Add(time.Minute): 10, noon.Add(2 * time.Minute): 10})
	last := c.Rows(noon.Add(3*time.Minute+time.Second), "pod", true)
	is.Equal([]any{len(last), last[0].At, last[0].Jobs, len(last[0].Run)}, []any{1, noon.Add(3 * time.Minute), int64(1), 0}) // a process that stops normally loses nothing
}

// A row that exists is never overwritten, so rows that follow a jump back must differ from those of the same minutes before.
func TestMinutesAfterClockSetBack(t *testing.T) {
	is := is.New(t)
	c := NewMinuteCounter()
	rows := c.Rows(noon, "pod", false)
	for _, at := range []time.Duration{1, 2, 1, 2, 1} { // ahead by two minutes, back by one
		c.Count("default", "k", job.Failed, NoRun)
		rows = c.Rows(noon.Add(at*time.Minute), "pod", false)
	}
	is.Equal(len(rows), 5)
	seen := map[string]bool{}
	for _, r := range rows {
		key := r.At.String() + *r.PodID
		is.True(!seen[key])
		seen[key] = true
	}
	is.Equal(*rows[0].PodID, "pod")
}

func TestUnwrittenStatsRows(t *testing.T) {
	is := is.New(t)
	c := NewMinuteCounter()
	c.Rows(noon, "pod", false)
	for minute := range 8 {
		for i := range mostCells / 2 {
			c.Count("default", fmt.Sprint(i), job.Succeeded, NoRun)
		}
		rows := c.Rows(noon.Add(time.Duration(minute+1)*time.Minute), "pod", false)
		is.Equal(len(rows), (minute+1)*mostCells/2) // rows accumulate as long as they cannot be written
	}
	for minute := range 8 {
		for i := range mostCells / 2 {
			c.Count("default", fmt.Sprint(i), job.Succeeded, NoRun)
		}
		c.Rows(noon.Add(time.Duration(minute+10)*time.Minute), "pod", false)
	}
	rows := c.Rows(noon.Add(time.Hour), "pod", false)
	is.Equal(len(rows), mostRows) // the oldest rows were dropped
	is.Equal(rows[len(rows)-1].At, noon.Add(16*time.Minute))
	c.Written(len(rows) - 1)
	is.Equal(len(c.Rows(noon.Add(2*time.Hour), "pod", false)), 1)
}

func TestStatsKindLimit(t *testing.T) {
	is := is.New(t)
	c := NewMinuteCounter()
	c.Rows(noon, "pod", false)
	for i := range mostCells + 5 {
		c.Count("default", fmt.Sprint(i), job.Cancelled, NoRun)
	}
	c.Count("default", "0", job.Cancelled, NoRun)
	rows := SumRows(c.Rows(noon.Add(time.Minute), "pod", false), func(r MinuteRow) string { return r.Kind })
	is.Equal(len(rows), mostCells+1)
	is.Equal(rows[OtherKinds].Jobs, int64(5))
	is.Equal(rows["0"].Jobs, int64(2))
}

func TestConcurrentStatsCounting(t *testing.T) {
	is := is.New(t)
	c := NewMinuteCounter()
	c.Rows(noon, "pod", false)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 1000 {
				c.Count("default", "k", job.Succeeded, RunTimes{time.Millisecond, time.Millisecond})
			}
		})
	}
	var rows []MinuteRow
	for minute := range 50 {
		taken := c.Rows(noon.Add(time.Duration(minute)*time.Minute), "pod", false)
		rows = append(rows, taken...)
		c.Written(len(taken))
	}
	workers.Wait()
	rows = append(rows, c.Rows(noon.Add(time.Hour), "pod", true)...)
	sum := SumRows(rows, func(r MinuteRow) job.State { return r.State })[job.Succeeded]
	is.Equal([]int64{sum.Jobs, sum.Wait[7], sum.Run[7]}, []int64{4000, 4000, 4000})
}

func BenchmarkCount(b *testing.B) {
	c := NewMinuteCounter()
	c.Rows(noon, "pod", false)
	for b.Loop() {
		c.Count("default", "plain", job.Succeeded, RunTimes{3 * time.Millisecond, 10 * time.Microsecond})
	}
}
