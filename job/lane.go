package job

import "errors"

// Errors returned by commands on lanes and pods.
var (
	// ErrLaneNotEmpty means that the lane to delete still has jobs, and the command names no lane to move them to.
	ErrLaneNotEmpty = errors.New("the lane has jobs: name a lane to move them to")
	// ErrKindInTwoLanes means that a kind was assigned to two lanes. A kind has only one default lane.
	ErrKindInTwoLanes = errors.New("kind in two lanes")
	// ErrUnknownPod means that no open pod has that name or boot ID.
	ErrUnknownPod = errors.New("unknown pod")
	// ErrInvalidSetting means that a lane name or one of a lane's settings is out of range.
	ErrInvalidSetting = errors.New("invalid setting")
)

// Lane holds a lane's settings.
type Lane struct {
	Name             string   `json:"name"`
	Slots            *int     `json:"slots"`         // limit across all pods; nil means no limit
	SlotsPerPod      *int     `json:"slots_per_pod"` // nil means only the pod's own limit
	StaleAfter       *Seconds `json:"stale_after_s"` // applies to kinds without a limit; nil means the pods' default, and 0 means no limit
	MaxAge           *Seconds `json:"max_age_s"`     // nil means the pods' default, and 0 means no limit
	RequiresApproval bool     `json:"requires_approval"`
	FourEyes         bool     `json:"four_eyes"` // jobs must be approved by someone other than their submitter
	Enabled          bool     `json:"enabled"`
	Drained          bool     `json:"drained"`     // drained by an operator: it starts no jobs until it is resumed
	Engine           string   `json:"engine"`      // name of the engine that runs the lane's jobs, by default postgres
	NextEngine       *string  `json:"next_engine"` // name of the engine to which the lane is moving; nil if it is not moving
	Kinds            []string `json:"kinds"`       // kinds that use the lane by default, sorted
}

// LaneChanged is the result of a lane change. For a dry run, it is the result that the change would have.
type LaneChanged struct {
	Lane    string   `json:"lane"`
	Created bool     `json:"created"`
	DryRun  bool     `json:"dry_run"`
	Changed []string `json:"changed"` // the JSON names of the settings that differ
	Before  *Lane    `json:"before"`  // nil if the lane did not exist
	After   *Lane    `json:"after"`   // nil if the lane was deleted
	Running int      `json:"running"` // jobs running in the lane; they continue
	Waiting int      `json:"waiting"` // jobs in the lane that are due
	Moved   int      `json:"moved"`   // waiting jobs moved to another lane
}
