package job

import (
	"context"
	"errors"
)

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
	JobURL(j Job) string
	// Check examines the engine, for example its connection and retention, for the doctor command.
	Check(ctx context.Context) []EngineFinding
}

// EngineProgress is implemented by a [LaneEngine] that keeps the progress of running jobs outside PostgreSQL.
type EngineProgress interface {
	// Progress returns the progress that a running job's handler has reported, or nil if there is none.
	Progress(ctx context.Context, j Job) (*Progress, error)
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
