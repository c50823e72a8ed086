package job

import "errors"

// Errors of commands for lanes and pods.
var (
	// ErrLaneNotEmpty says that a lane that is to be deleted has jobs, and that no other was named that takes them.
	ErrLaneNotEmpty = errors.New("the lane has jobs: name a lane to move them to")
	// ErrKindInTwoLanes says that a kind was given to two lanes: it has one default lane.
	ErrKindInTwoLanes = errors.New("kind in two lanes")
	// ErrUnknownPod says that no open pod has that name or boot id.
	ErrUnknownPod = errors.New("unknown pod")
	// ErrInvalidSetting says that a lane's name or one of its settings is out of range.
	ErrInvalidSetting = errors.New("invalid setting")
)

// Lane is how a lane is set.
type Lane struct {
	Name             string   `json:"name"`
	Slots            *int     `json:"slots"`            // of all pods together; nil: no limit
	SlotsPerPod      *int     `json:"slots_per_pod"`    // nil: as many as the pod has
	PollInterval     *Millis  `json:"poll_interval_ms"` // nil: what the pods say
	StaleAfter       *Seconds `json:"stale_after_s"`    // for kinds that say nothing; nil: what the pods say; 0: no limit
	MaxAge           *Seconds `json:"max_age_s"`        // nil: what the pods say; 0: no limit
	RequiresApproval bool     `json:"requires_approval"`
	Enabled          bool     `json:"enabled"`
	Drained          bool     `json:"drained"` // by an operator, until it is resumed
	Kinds            []string `json:"kinds"`   // whose default lane it is, sorted
}

// LaneChanged is what became, or in a dry run would become, of a lane.
type LaneChanged struct {
	Lane    string   `json:"lane"`
	Created bool     `json:"created"`
	DryRun  bool     `json:"dry_run"`
	Changed []string `json:"changed"` // the settings that differ, by their names in JSON
	Before  *Lane    `json:"before"`  // nil: there was none
	After   *Lane    `json:"after"`   // nil: it was deleted
	Running int      `json:"running"` // jobs that run in the lane: they go on to their end
	Waiting int      `json:"waiting"` // jobs that are due there
	Moved   int      `json:"moved"`   // waiting jobs that move to another lane, or would
}
