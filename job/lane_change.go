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
	Slots            Limit[int]     `json:"slots,omitzero"`
	SlotsPerPod      Limit[int]     `json:"slots_per_pod,omitzero"`
	StaleAfter       Limit[Seconds] `json:"stale_after_s,omitzero"` // whole seconds
	MaxAge           Limit[Seconds] `json:"max_age_s,omitzero"`     // whole seconds
	RequiresApproval *bool          `json:"requires_approval,omitempty"`
	FourEyes         *bool          `json:"four_eyes,omitempty"` // true only if the lane also requires approval
	Enabled          *bool          `json:"enabled,omitempty"`
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
	for _, set := range []*bool{&c.Slots.Set, &c.SlotsPerPod.Set, &c.StaleAfter.Set, &c.MaxAge.Set} {
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
	c.StaleAfter.apply(&l.StaleAfter)
	c.MaxAge.apply(&l.MaxAge)
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
	MaxLaneAge   = 10 * 365 * 24 * time.Hour // also the limit for StaleAfter
)

var validLane = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

// ValidateLaneName returns [ErrInvalidSetting] unless name is a valid name for a new lane: 1 to 100 letters, digits, dots, underscores or
// minus signs, starting with a letter or digit.
func ValidateLaneName(name string) error {
	if !validLane.MatchString(name) {
		return fmt.Errorf("%w: lane %q: want 1 to 100 letters, digits, dots, underscores or minus signs", ErrInvalidSetting, name)
	}
	return nil
}

// Validate reports all invalid settings at once, each as an [ErrInvalidSetting].
func (c LaneChange) Validate() error {
	errs := []error{
		c.Slots.validate("slots", 0, MaxLaneSlots, 1),
		c.SlotsPerPod.validate("slots_per_pod", 0, MaxLaneSlots, 1),
		c.StaleAfter.validate("stale_after_s", 0, Seconds(MaxLaneAge), Seconds(time.Second)),
		c.MaxAge.validate("max_age_s", 0, Seconds(MaxLaneAge), Seconds(time.Second)),
	}
	if c.Engine != nil && (*c.Engine == "" || len(*c.Engine) > 100 || !validLane.MatchString(*c.Engine)) {
		errs = append(errs, fmt.Errorf("%w: engine %q: want postgres, or the name of an engine that a pod serves", ErrInvalidSetting, *c.Engine))
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
