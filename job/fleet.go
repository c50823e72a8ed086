package job

import "time"

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
	Name             string     `json:"name"`
	Slots            *int       `json:"slots"` // limit across all pods; nil means no limit
	SlotsPerPod      *int       `json:"slots_per_pod"`
	StaleAfter       *Seconds   `json:"stale_after_s"`
	MaxAge           *Seconds   `json:"max_age_s"`
	RequiresApproval bool       `json:"requires_approval"`
	FourEyes         bool       `json:"four_eyes"`
	Enabled          bool       `json:"enabled"`
	Drained          bool       `json:"drained"`
	Engine           string     `json:"engine"`      // name of the engine that runs the lane's jobs, by default postgres
	NextEngine       *string    `json:"next_engine"` // name of the engine to which the lane is moving; nil if it is not moving
	Kinds            []string   `json:"kinds"`       // kinds that use the lane by default
	Running          int        `json:"running"`
	Waiting          int        `json:"waiting"` // jobs that are due but not claimed
	Oldest           *time.Time `json:"oldest_waiting_since"`
	Paused           bool       `json:"paused"`                      // the queue is paused: no pod claims jobs in any lane
	Frozen           bool       `json:"frozen"`                      // the queue is frozen for maintenance
	EngineUse        *EngineUse `json:"engine_use,omitempty" db:"-"` // reported by an engine that this process serves; nil for PostgreSQL
	Drain            *Closure   `json:"drain,omitempty" db:"-"`      // who drained the lane, and why; nil if it is open or was drained with SQL
}
