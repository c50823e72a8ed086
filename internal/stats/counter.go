// Package stats counts finished jobs by minute, lane, kind and state, with histograms of their wait and run times. It does no I/O. A pod
// writes the rows of its [Counter] once a minute, and readers add up all pods' rows.
package stats

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/job"
)

// Row counts the jobs of a lane, kind and state that ended on one pod within a minute, or on all pods within an hour.
type Row struct {
	At    time.Time `json:"at"` // when the minute or hour began
	Lane  string    `json:"lane"`
	Kind  string    `json:"kind"`
	State job.State `json:"state"`
	PodID *string   `json:"pod"` // nil in a row for an hour
	Jobs  int64     `json:"jobs"`
	Wait  Histogram `json:"wait"`
	Run   Histogram `json:"run"`
}

// Times holds the wait and run times of a job's last attempt. A negative value means unknown.
type Times struct{ Wait, Run time.Duration }

// NoRun is the Times of a job that ended without its handler returning.
var NoRun = Times{-1, -1}

const (
	// mostCells limits the number of combinations of lane, kind and state in a minute, because clients choose the names of kinds. Once the
	// limit has been reached, further kinds are counted as Other.
	mostCells = 2000
	// mostRows is the maximum number of rows waiting to be written. The oldest are dropped first.
	mostRows = 10_000
	// Other is the kind of jobs counted after the mostCells limit has been reached. It is not a valid name for a kind.
	Other = "(other)"
)

type cell struct {
	lane, kind string
	state      job.State
}

// Counter counts the jobs that end in this process. It is safe for concurrent use.
type Counter struct {
	mu      sync.Mutex
	minute  time.Time // the start of the current minute, by the database's clock; zero before the first call of Rows
	id      string    // replaces the pod's ID in rows once the clock was set back
	cells   map[cell]*Row
	pending []Row // rows of earlier minutes that have not been written yet
}

// NewCounter returns an empty Counter.
func NewCounter() *Counter { return &Counter{cells: map[cell]*Row{}} }

// Count counts a finished job in the minute that began with the latest call to [Counter.Rows]. It does not read the clock, because it is
// called for every job.
func (c *Counter) Count(lane, kind string, state job.State, t Times) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := cell{lane, kind, state}
	row := c.cells[at]
	if row == nil {
		if len(c.cells) >= mostCells {
			at.kind = Other
		}
		if row = c.cells[at]; row == nil {
			row = &Row{Lane: at.lane, Kind: at.kind, State: at.state, Wait: Histogram{}, Run: Histogram{}}
			c.cells[at] = row
		}
	}
	row.Jobs++
	row.Wait.Observe(t.Wait)
	row.Run.Observe(t.Run)
}

// Rows returns the rows of all complete minutes that have not been passed to Written, oldest first. If stopping is set, Rows includes the
// current minute and must not be called again. The now argument is the database's time, and podID is the pod's ID.
func (c *Counter) Rows(now time.Time, podID string, stopping bool) []Row {
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
		c.minute, c.cells = next, map[cell]*Row{}
	}
	if excess := len(c.pending) - mostRows; excess > 0 {
		c.pending = slices.Clone(c.pending[excess:])
	}
	return slices.Clone(c.pending)
}

// Written removes the first n rows that Rows returned, because they are now in the database.
func (c *Counter) Written(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.Clone(c.pending[n:])
}

// Sum adds up the rows for which key returns the same value.
func Sum[K comparable](rows []Row, key func(Row) K) map[K]*Row {
	sums := map[K]*Row{}
	for _, row := range rows {
		k := key(row)
		sum := sums[k]
		if sum == nil {
			sum = &Row{At: row.At, Lane: row.Lane, Kind: row.Kind, State: row.State, Wait: Histogram{}, Run: Histogram{}}
			sums[k] = sum
		}
		sum.Jobs += row.Jobs
		sum.Wait.Add(row.Wait)
		sum.Run.Add(row.Run)
	}
	return sums
}
