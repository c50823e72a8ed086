package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Errors returned by commands on lanes and pods.
var (
	// ErrLaneNotEmpty means that the lane to delete still has jobs, and the command names no lane to move them to.
	ErrLaneNotEmpty = errors.New("the lane has jobs: name a lane to move them to")
	// ErrKindInTwoLanes means that a kind was assigned to two lanes. A kind has only one default lane.
	ErrKindInTwoLanes = errors.New("kind in two lanes")
	// ErrUnknownPod means that no open pod has that name or ID.
	ErrUnknownPod = errors.New("unknown pod")
	// ErrInvalidSetting means that a lane name or one of a lane's settings is out of range.
	ErrInvalidSetting = errors.New("invalid setting")
)

// Lane holds a lane's settings.
type Lane struct {
	Name              string   `json:"name"`
	Slots             *int     `json:"slots"`                // limit across all pods; nil means no limit
	SlotsPerPod       *int     `json:"slots_per_pod"`        // nil means only the pod's own limit
	InactivityTimeout *Seconds `json:"inactivity_timeout_s"` // applies to kinds without a limit; nil means the pods' default, and 0 means no limit
	MaxAge            *Seconds `json:"max_age_s"`            // nil means the pods' default, and 0 means no limit
	StartWithin       *Seconds `json:"start_within_s"`       // a job that has not started so long after it was due fails; nil means no limit
	RequiresApproval  bool     `json:"requires_approval"`
	FourEyes          bool     `json:"four_eyes"` // jobs must be approved by someone other than their submitter
	Enabled           bool     `json:"enabled"`
	Drained           bool     `json:"drained"`     // drained by an operator: it starts no jobs until it is undrained
	Engine            string   `json:"engine"`      // name of the engine that runs the lane's jobs, by default postgres
	NextEngine        *string  `json:"next_engine"` // name of the engine to which the lane is moving; nil if it is not moving
	Template          *string  `json:"template"`    // template from which the lane was made and takes its settings; nil if it has its own
	Kinds             []string `json:"kinds"`       // kinds that use the lane by default, sorted
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

// Limit is a change to a number or duration: it sets a value, removes the limit, or leaves the limit unchanged. In JSON, these changes are
// a number, null, and a missing field, respectively.
type Limit[T int | Seconds] struct {
	Set   bool
	Value *T // nil means no limit
}

// To returns a Limit that sets n.
func To[T int | Seconds](n T) Limit[T] { return Limit[T]{Set: true, Value: &n} }

// NoLimit returns a Limit that removes a limit.
func NoLimit[T int | Seconds]() Limit[T] { return Limit[T]{Set: true} }

// IsZero reports whether the change leaves the limit unchanged.
func (l Limit[T]) IsZero() bool { return !l.Set }

// UnmarshalJSON implements [json.Unmarshaler].
func (l *Limit[T]) UnmarshalJSON(raw []byte) error {
	*l = NoLimit[T]()
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	l.Value = new(T)
	return json.Unmarshal(raw, l.Value)
}

// MarshalJSON implements [json.Marshaler].
func (l Limit[T]) MarshalJSON() ([]byte, error) { return json.Marshal(l.Value) }

func (l Limit[T]) apply(into **T) {
	if l.Set {
		*into = l.Value
	}
}

// validate returns [ErrInvalidSetting] if the limit is out of range or is not a whole number of units. name is the limit's JSON name.
func (l Limit[T]) validate(name string, least, most, unit T) error {
	switch {
	case l.Value == nil:
		return nil
	case *l.Value%unit != 0:
		return fmt.Errorf("%w: %s of %v: want a whole number", ErrInvalidSetting, name, *l.Value)
	case *l.Value < least || *l.Value > most:
		return fmt.Errorf("%w: %s %d: want %d to %d, or none", ErrInvalidSetting, name, int64(*l.Value/unit), int64(least/unit), int64(most/unit))
	}
	return nil
}

// LaneChange describes a change to a lane. Unset fields leave their settings unchanged.
type LaneChange struct {
	Slots             Limit[int]     `json:"slots,omitzero"`
	SlotsPerPod       Limit[int]     `json:"slots_per_pod,omitzero"`
	InactivityTimeout Limit[Seconds] `json:"inactivity_timeout_s,omitzero"` // whole seconds
	MaxAge            Limit[Seconds] `json:"max_age_s,omitzero"`            // whole seconds
	StartWithin       Limit[Seconds] `json:"start_within_s,omitzero"`       // whole seconds; applies to jobs that are created after the change
	RequiresApproval  *bool          `json:"requires_approval,omitempty"`
	FourEyes          *bool          `json:"four_eyes,omitempty"` // true only if the lane also requires approval
	Enabled           *bool          `json:"enabled,omitempty"`
	// Engine moves the lane to another engine: no job starts in it until its running jobs have ended. Naming the lane's current engine
	// cancels a move in progress.
	Engine *string   `json:"engine,omitempty"`
	Kinds  *[]string `json:"kinds,omitempty"` // all kinds that use the lane by default; kinds removed from the list move to the lane "default"

	// Existing requires the lane to exist. If it is false, a missing lane is created.
	Existing bool `json:"-"`
	// DryRun reports the result of the change without applying it.
	DryRun bool `json:"-"`
}

// Whole returns the change with every unset field set to its default, except Kinds and Engine.
func (c LaneChange) Whole() LaneChange {
	for _, set := range []*bool{&c.Slots.Set, &c.SlotsPerPod.Set, &c.InactivityTimeout.Set, &c.MaxAge.Set, &c.StartWithin.Set} {
		*set = true
	}
	if c.RequiresApproval == nil {
		c.RequiresApproval = new(bool)
	}
	if c.FourEyes == nil {
		c.FourEyes = new(bool)
	}
	if c.Enabled == nil {
		c.Enabled = new(bool)
		*c.Enabled = true
	}
	return c
}

// Apply returns the lane with the change applied.
func (c LaneChange) Apply(l Lane) Lane {
	c.Slots.apply(&l.Slots)
	c.SlotsPerPod.apply(&l.SlotsPerPod)
	c.InactivityTimeout.apply(&l.InactivityTimeout)
	c.MaxAge.apply(&l.MaxAge)
	c.StartWithin.apply(&l.StartWithin)
	if c.RequiresApproval != nil {
		l.RequiresApproval = *c.RequiresApproval
	}
	if c.FourEyes != nil {
		l.FourEyes = *c.FourEyes
	}
	if c.Enabled != nil {
		l.Enabled = *c.Enabled
	}
	if c.Engine != nil {
		if l.NextEngine = c.Engine; *c.Engine == l.Engine {
			l.NextEngine = nil
		}
	}
	if c.Kinds != nil {
		l.Kinds = slices.Sorted(slices.Values(*c.Kinds))
	}
	return l
}

// Limits on a lane's settings.
const (
	MaxLaneSlots = 1_000_000
	MaxLaneAge   = 10 * 365 * 24 * time.Hour // also the limit for InactivityTimeout and StartWithin
)

var (
	validLane   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,98}[A-Za-z0-9_./*-]?$`)
	validEngine = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)
)

// ValidateLaneName returns [ErrInvalidSetting] unless name is a valid name for a new lane: 1 to 100 letters, digits, dots, slashes, underscores or
// minus signs, starting with a letter or digit. A template's name also ends in an asterisk; see [IsLaneTemplate].
func ValidateLaneName(name string) error {
	if !validLane.MatchString(name) {
		return fmt.Errorf("%w: lane %q: want 1 to 100 letters, digits, dots, slashes, underscores or minus signs; a template ends in *", ErrInvalidSetting, name)
	}
	return nil
}

// ValidateEngineName returns [ErrInvalidSetting] unless name is a valid name of an engine: 1 to 100 letters, digits, dots, underscores or minus signs,
// starting with a letter or digit.
func ValidateEngineName(name string) error {
	if !validEngine.MatchString(name) {
		return fmt.Errorf("%w: engine %q: want postgres, or the name of an engine that a pod serves", ErrInvalidSetting, name)
	}
	return nil
}

// IsLaneTemplate reports whether a lane's name, such as tenant/*, is that of a template. No job is in a template. A lane whose name begins with the part
// before the asterisk is made when its first job becomes due, and deleted when it has been without due jobs for some minutes. Of several templates, the
// one with the longest name applies. Until such a lane is changed itself, it has the settings of its template.
func IsLaneTemplate(name string) bool { return strings.HasSuffix(name, "*") }

// Validate reports all invalid settings at once, each as an [ErrInvalidSetting].
func (c LaneChange) Validate() error {
	errs := []error{
		c.Slots.validate("slots", 0, MaxLaneSlots, 1),
		c.SlotsPerPod.validate("slots_per_pod", 0, MaxLaneSlots, 1),
		c.InactivityTimeout.validate("inactivity_timeout_s", 0, Seconds(MaxLaneAge), Seconds(time.Second)),
		c.MaxAge.validate("max_age_s", 0, Seconds(MaxLaneAge), Seconds(time.Second)),
		c.StartWithin.validate("start_within_s", Seconds(time.Second), Seconds(MaxLaneAge), Seconds(time.Second)),
	}
	if c.Engine != nil {
		errs = append(errs, ValidateEngineName(*c.Engine))
	}
	if c.Kinds != nil {
		seen := map[string]bool{}
		for _, kind := range *c.Kinds {
			if kind == "" || len(kind) > MaxKindBytes || !utf8.ValidString(kind) || strings.ContainsRune(kind, 0) || seen[kind] {
				errs = append(errs, fmt.Errorf("%w: kinds: %q: want each kind once, 1 to %d bytes", ErrInvalidSetting, kind, MaxKindBytes))
			}
			seen[kind] = true
		}
	}
	return errors.Join(errs...)
}

// QueueState is the state of the queue. While the queue is paused or frozen, no job starts on any pod.
type QueueState struct {
	Paused bool `json:"paused"`
	Frozen bool `json:"frozen"` // for maintenance

	Pause  *Closure `json:"pause,omitempty" db:"-"`  // who paused the queue, and why; nil if it was paused with SQL, or if this field was not read
	Freeze *Closure `json:"freeze,omitempty" db:"-"` // likewise for a freeze
}

// Closure describes who closed the queue, a lane or a pod, when, and why.
type Closure struct {
	Since  time.Time `json:"since"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason"` // empty if the operator gave no reason
}

// DrainResult is the result of a command that stops jobs from starting and waits for running jobs to end.
type DrainResult struct {
	Changed bool `json:"changed"` // false if the target was already paused, frozen or drained
	Running int  `json:"running"` // jobs that are still running in the command's scope
	// Quiet means that no job is running in the command's scope and that none will start there until the scope is undrained, because every
	// pod has applied the command.
	Quiet bool `json:"quiet"`
	// TimedOut means that the wait timed out while jobs were still running. The jobs keep running, and the command stays in force.
	TimedOut bool `json:"timed_out"`
}

// Slot describes a slot in use, with its job, pod, claim time and progress.
type Slot struct {
	Job             int64     `json:"job,string"`
	Kind            string    `json:"kind"`
	Lane            string    `json:"lane"`
	Subject         string    `json:"subject"`
	Key             string    `json:"key"` // empty if there is none
	Priority        int       `json:"priority"`
	Attempt         int       `json:"attempt"`
	Fence           int64     `json:"fence"`
	PodID           string    `json:"pod_id"`
	Pod             string    `json:"pod"`
	Since           time.Time `json:"since"`   // when the job was claimed
	Fetched         bool      `json:"fetched"` // claimed ahead of a free slot; no start is recorded yet
	CancelRequested bool      `json:"cancel_requested"`
	Progress        *Progress `json:"progress"`
}
