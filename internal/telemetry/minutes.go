package telemetry

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/job"
)

// MinuteRow counts the jobs of a lane, kind and state that ended on one pod within a minute, or on all pods within an hour.
type MinuteRow struct {
	At    time.Time   `json:"at"` // when the minute or hour began
	Lane  string      `json:"lane"`
	Kind  string      `json:"kind"`
	State job.State   `json:"state"`
	PodID *string     `json:"pod"` // nil in a row for an hour
	Jobs  int64       `json:"jobs"`
	Wait  TimeBuckets `json:"wait"`
	Run   TimeBuckets `json:"run"`
}

// RunTimes holds the wait and run times of a job's last attempt. A negative value means unknown.
type RunTimes struct{ Wait, Run time.Duration }

// NoRun is the Times of a job that ended without its handler returning.
var NoRun = RunTimes{-1, -1}

const (
	// mostCells limits the number of combinations of lane, kind and state in a minute, because clients choose the names of kinds. Once the
	// limit has been reached, further kinds are counted as Other.
	mostCells = 2000
	// mostRows is the maximum number of rows waiting to be written. The oldest are dropped first.
	mostRows = 10_000
	// OtherKinds is the kind of jobs counted after the mostCells limit has been reached. It is not a valid name for a kind.
	OtherKinds = "(other)"
)

type cell struct {
	lane, kind string
	state      job.State
}

// MinuteCounter counts the jobs that end in this process. It is safe for concurrent use.
type MinuteCounter struct {
	mu      sync.Mutex
	minute  time.Time // the start of the current minute, by the database's clock; zero before the first call of Rows
	id      string    // replaces the pod's ID in rows once the clock was set back
	cells   map[cell]*MinuteRow
	pending []MinuteRow // rows of earlier minutes that have not been written yet
}

// NewMinuteCounter returns an empty MinuteCounter.
func NewMinuteCounter() *MinuteCounter { return &MinuteCounter{cells: map[cell]*MinuteRow{}} }

// Count counts a finished job in the minute that began with the latest call to [Counter.Rows]. It does not read the clock, because it is
// called for every job.
func (c *MinuteCounter) Count(lane, kind string, state job.State, t RunTimes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := cell{lane, kind, state}
	row := c.cells[at]
	if row == nil {
		if len(c.cells) >= mostCells {
			at.kind = OtherKinds
		}
		if row = c.cells[at]; row == nil {
			row = &MinuteRow{Lane: at.lane, Kind: at.kind, State: at.state, Wait: TimeBuckets{}, Run: TimeBuckets{}}
			c.cells[at] = row
		}
	}
	row.Jobs++
	row.Wait.Observe(t.Wait)
	row.Run.Observe(t.Run)
}

// Rows returns the rows of all complete minutes that have not been passed to Written, oldest first. If stopping is set, Rows includes the
// current minute and must not be called again. The now argument is the database's time, and podID is the pod's ID.
func (c *MinuteCounter) Rows(now time.Time, podID string, stopping bool) []MinuteRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := now.Truncate(time.Minute)
	if c.minute.IsZero() {
		c.minute = next
	}
	if !next.Equal(c.minute) || stopping {
		podID = cmp.Or(c.id, podID)
		for _, row := range c.cells {
			row.At, row.PodID = c.minute.UTC(), &podID
			c.pending = append(c.pending, *row)
		}
		if next.Before(c.minute) {
			c.id = uuid.NewString() // rows of the coming minutes may already exist, and a row is inserted only once
		}
		c.minute, c.cells = next, map[cell]*MinuteRow{}
	}
	if excess := len(c.pending) - mostRows; excess > 0 {
		c.pending = slices.Clone(c.pending[excess:])
	}
	return slices.Clone(c.pending)
}

// Written removes the first n rows that Rows returned, because they are now in the database.
func (c *MinuteCounter) Written(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.Clone(c.pending[n:])
}

// SumRows adds up the rows for which key returns the same value.
func SumRows[K comparable](rows []MinuteRow, key func(MinuteRow) K) map[K]*MinuteRow {
	sums := map[K]*MinuteRow{}
	for _, row := range rows {
		k := key(row)
		sum := sums[k]
		if sum == nil {
			sum = &MinuteRow{At: row.At, Lane: row.Lane, Kind: row.Kind, State: row.State, Wait: TimeBuckets{}, Run: TimeBuckets{}}
			sums[k] = sum
		}
		sum.Jobs += row.Jobs
		sum.Wait.Add(row.Wait)
		sum.Run.Add(row.Run)
	}
	return sums
}

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
