package job

import (
	"context"
	"errors"
	"time"
)

// Fleet is a snapshot of all pods: the queue state, the lanes, the open pods and the running jobs.
type Fleet struct {
	Queue   QueueState `json:"queue_state"`
	Lanes   []LaneUse  `json:"lanes"`
	Pods    []Pod      `json:"pods"`
	Running []Slot     `json:"running"`
	At      time.Time  `json:"-"` // the database's time, on which leases depend; zero if it was not read
}

// LaneUse holds a lane's settings and the numbers of running and waiting jobs in it.
type LaneUse struct {
	Name              string     `json:"name"`
	Slots             *int       `json:"slots"` // limit across all pods; nil means no limit
	SlotsPerPod       *int       `json:"slots_per_pod"`
	InactivityTimeout *Seconds   `json:"inactivity_timeout_s"`
	MaxAge            *Seconds   `json:"max_age_s"`
	StartWithin       *Seconds   `json:"start_within_s"`
	RequiresApproval  bool       `json:"requires_approval"`
	FourEyes          bool       `json:"four_eyes"`
	Enabled           bool       `json:"enabled"`
	Drained           bool       `json:"drained"`
	Engine            string     `json:"engine"`      // name of the engine that runs the lane's jobs, by default postgres
	NextEngine        *string    `json:"next_engine"` // name of the engine to which the lane is moving; nil if it is not moving
	Template          *string    `json:"template"`    // template from which the lane was made and takes its settings; nil if it has its own
	Kinds             []string   `json:"kinds"`       // kinds that use the lane by default
	Running           int        `json:"running"`
	Waiting           int        `json:"waiting"` // jobs that are due but not claimed
	Oldest            *time.Time `json:"oldest_waiting_since"`
	Paused            bool       `json:"paused"`                      // the queue is paused: no pod claims jobs in any lane
	Frozen            bool       `json:"frozen"`                      // the queue is frozen for maintenance
	EngineUse         *EngineUse `json:"engine_use,omitempty" db:"-"` // reported by an engine that this process serves; nil for PostgreSQL
	Drain             *Closure   `json:"drain,omitempty" db:"-"`      // who drained the lane, and why; nil if it is open or was drained with SQL
}

// EnginePostgreSQL is the engine of lanes whose jobs run on Trapeze's pods. It is the default.
const EnginePostgreSQL = "postgres"

// ErrNoEngine means that a lane cannot move to an engine, because no open pod serves that engine.
var ErrNoEngine = errors.New("no pod serves the engine")

// LaneEngine is an engine other than PostgreSQL that this program serves. It runs the jobs of the lanes that name it. Its methods must be
// safe for concurrent use and return soon after ctx is done. The engine receives its jobs through an outbox table, not through these
// methods.
type LaneEngine interface {
	// Name returns the name that lanes use, such as temporal.
	Name() string
	// Use reports the number of open jobs in each of the given lanes, according to the engine's records. A lane missing from the result has
	// none.
	Use(ctx context.Context, lanes []string) (map[string]EngineUse, error)
	// JobURL returns the URL, in the engine's own dashboard, of a job's latest run, which is identified by the job's fence. It returns an
	// empty string if there is no such page.
	JobURL(j JobRow) string
	// Check examines the engine, for example its connection and retention, for the doctor command.
	Check(ctx context.Context) []EngineFinding
}

// EngineProgress is implemented by a [LaneEngine] that keeps the progress of running jobs outside PostgreSQL.
type EngineProgress interface {
	// Progress returns the progress that a running job's handler has reported, or nil if there is none.
	Progress(ctx context.Context, j JobRow) (*Progress, error)
}

// EngineUse is the report of an engine other than PostgreSQL about a lane.
type EngineUse struct {
	Open  int    `json:"open"`            // jobs that have not ended in the engine
	URL   string `json:"url,omitempty"`   // URL of the lane's page in the engine's own dashboard; empty if there is none
	Error string `json:"error,omitempty"` // why Open is unknown; empty if it is known
}

// EngineFinding is one of the results of [LaneEngine.Check].
type EngineFinding struct {
	Status string // ok, warn or fail
	Says   string // the result, in one line
	Do     string // the remedy; empty if there is nothing to do
}

// LaneMove is the state of a lane's move to another engine. No job starts in the lane until the move is complete.
type LaneMove struct {
	Lane     string `json:"lane"`
	Engine   string `json:"engine"`      // name of the engine that runs the lane's jobs
	Next     string `json:"next_engine"` // name of the engine to which the lane is moving; empty if it is not moving
	Running  int    `json:"running"`     // jobs that must end first
	Pods     int    `json:"pods"`        // pods that have not yet confirmed that they no longer start jobs in the lane
	TimedOut bool   `json:"timed_out"`   // the wait ended before the lane had moved; the move continues
}

// Stats counts the jobs that ended in a period. Each pod counts the jobs that it ends and stores its counts once a minute. A pod that
// crashes loses up to a minute of its counts. For exact numbers, count the jobs themselves.
type Stats struct {
	Window Seconds   `json:"window_s"` // the length of the period, which ends at At
	Every  Seconds   `json:"every_s"`  // the length of an interval
	Since  time.Time `json:"since"`    // when the first interval began
	At     time.Time `json:"at"`       // when the statistics were read
	// ReadSince is set if there were too many rows to read. Rows before this time are not included.
	ReadSince *time.Time `json:"read_since"`
	Total     StatsOf    `json:"total"`
	Of        []StatsOf  `json:"of"` // by lane or kind, in descending order of finished jobs
}

// StatsOf holds statistics for a lane, a kind, or all jobs. A quantile is nil if no handler returned.
type StatsOf struct {
	Name      string          `json:"name"`     // name of the lane or kind; empty in the total
	Finished  int64           `json:"finished"` // all jobs that ended
	Succeeded int64           `json:"succeeded"`
	Failed    int64           `json:"failed"`
	Cancelled int64           `json:"cancelled"`
	WaitP50   *Seconds        `json:"wait_p50_s"` // time from due to claimed, for the last attempt
	WaitP95   *Seconds        `json:"wait_p95_s"`
	RunP50    *Seconds        `json:"run_p50_s"` // how long the handler ran in the last attempt
	RunP95    *Seconds        `json:"run_p95_s"`
	Intervals []StatsInterval `json:"intervals"` // oldest first; the last one is still in progress
}

// StatsInterval holds the statistics for one interval.
type StatsInterval struct {
	At       time.Time `json:"at"` // when the interval began
	Finished int64     `json:"finished"`
	Failed   int64     `json:"failed"`
	WaitP95  *Seconds  `json:"wait_p95_s"` // only in the total
	RunP95   *Seconds  `json:"run_p95_s"`  // only in the total
}
