package job

import (
	"context"
	"errors"
)

// EnginePostgreSQL is the engine of lanes whose jobs run on Trapeze's pods. It is the default.
const EnginePostgreSQL = "postgres"

// ErrNoEngine means that a lane cannot move to an engine, because no open pod serves that engine.
var ErrNoEngine = errors.New("no pod serves the engine")

// LaneEngine is an engine that this program serves besides PostgreSQL. It runs the jobs of the lanes that name it. Its methods are safe for
// concurrent use, and return soon after ctx ends. The engine receives its jobs through an outbox table, not through these
// methods.
type LaneEngine interface {
	// Name returns the name that lanes use, such as temporal.
	Name() string
	// Use reports how many jobs the engine has in each of the given lanes, from its own records. A lane that is missing from the result has
	// none.
	Use(ctx context.Context, lanes []string) (map[string]EngineUse, error)
	// JobURL returns the page of a job's latest run in the engine's own dashboard, or an empty string if there is none. The run is that of
	// the job's fence.
	JobURL(j Job) string
	// Check examines the engine for doctor, for example its connection and its retention.
	Check(ctx context.Context) []EngineFinding
}

// EngineProgress is implemented by a [LaneEngine] that keeps the progress of running jobs outside PostgreSQL.
type EngineProgress interface {
	// Progress returns the progress that the handler of a running job has reported, or nil if there is none.
	Progress(ctx context.Context, j Job) (*Progress, error)
}

// EngineUse is what an engine other than PostgreSQL reports about a lane.
type EngineUse struct {
	Open  int    `json:"open"`            // jobs that the engine has not ended
	URL   string `json:"url,omitempty"`   // page of the lane in the engine's own dashboard; empty if there is none
	Error string `json:"error,omitempty"` // why Open is not known; otherwise empty
}

// EngineFinding is the result of an engine's check of itself, for doctor.
type EngineFinding struct {
	Status string // ok, warn or fail
	Says   string // the result, in one line
	Do     string // the remedy; empty if there is nothing to do
}

// LaneMove is the state of a lane's move to another engine. Until the lane has moved, no job starts in it.
type LaneMove struct {
	Lane     string `json:"lane"`
	Engine   string `json:"engine"`      // name of the engine that runs the lane's jobs
	Next     string `json:"next_engine"` // name of the engine to which the lane is moving; empty if it is not moving
	Running  int    `json:"running"`     // jobs that must end first
	Pods     int    `json:"pods"`        // pods that have not confirmed that they start no jobs in the lane
	TimedOut bool   `json:"timed_out"`   // the wait ended before the lane had moved; the move continues
}
