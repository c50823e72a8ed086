package job

import "time"

// Fleet is the state of all pods at one moment: the queue state, the lanes, the open pods and the running jobs.
type Fleet struct {
	Queue   QueueState `json:"gate"`
	Lanes   []LaneUse  `json:"lanes"`
	Pods    []Pod      `json:"pods"`
	Running []Slot     `json:"running"`
	At      time.Time  `json:"-"` // by the database's clock, which leases go by; zero where it was not read
}

// LaneUse is a lane with its settings and its running and waiting jobs.
type LaneUse struct {
	Name             string     `json:"name"`
	Slots            *int       `json:"slots"` // limit over all pods; nil: no limit
	SlotsPerPod      *int       `json:"slots_per_pod"`
	PollInterval     *Millis    `json:"poll_interval_ms"`
	StaleAfter       *Seconds   `json:"stale_after_s"`
	MaxAge           *Seconds   `json:"max_age_s"`
	RequiresApproval bool       `json:"requires_approval"`
	Enabled          bool       `json:"enabled"`
	Drained          bool       `json:"drained"`
	Kinds            []string   `json:"kinds"` // the kinds whose default lane it is
	Running          int        `json:"running"`
	Waiting          int        `json:"waiting"` // due and not claimed
	Oldest           *time.Time `json:"oldest_waiting_since"`
	Paused           bool       `json:"paused"` // the queue is paused: no pod claims jobs in any lane
	Frozen           bool       `json:"frozen"` // the queue is frozen for maintenance
}
