package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limit is a number that a change sets, takes away, or leaves as it is. In JSON: a number, null, or no field at all.
type Limit struct {
	Set   bool
	Value *int // nil: none
}

// To sets a limit.
func To(n int) Limit { return Limit{Set: true, Value: &n} }

// NoLimit takes a limit away.
var NoLimit = Limit{Set: true}

// IsZero reports whether the limit stays as it is.
func (l Limit) IsZero() bool { return !l.Set }

// UnmarshalJSON implements [json.Unmarshaler].
func (l *Limit) UnmarshalJSON(raw []byte) error {
	*l = NoLimit
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	l.Value = new(int)
	return json.Unmarshal(raw, l.Value)
}

// MarshalJSON implements [json.Marshaler].
func (l Limit) MarshalJSON() ([]byte, error) { return json.Marshal(l.Value) }

// LaneChange is what becomes different in a lane; what it does not mention stays.
type LaneChange struct {
	Slots            Limit     `json:"slots,omitzero"`
	SlotsPerPod      Limit     `json:"slots_per_pod,omitzero"`
	PollIntervalMS   Limit     `json:"poll_interval_ms,omitzero"`
	StaleAfterS      Limit     `json:"stale_after_s,omitzero"`
	MaxAgeS          Limit     `json:"max_age_s,omitzero"`
	RequiresApproval *bool     `json:"requires_approval,omitempty"`
	Enabled          *bool     `json:"enabled,omitempty"`
	Kinds            *[]string `json:"kinds,omitempty"` // all kinds whose default lane it is to be; others go to the lane default

	// Existing makes the change one of a lane that is there: without it, one that is not is created.
	Existing bool `json:"-"`
	// DryRun tells what would change, and changes nothing.
	DryRun bool `json:"-"`
}

// Whole is the change with every setting that it does not mention at its default; kinds stay as they are.
func (c LaneChange) Whole() LaneChange {
	for _, l := range []*Limit{&c.Slots, &c.SlotsPerPod, &c.PollIntervalMS, &c.StaleAfterS, &c.MaxAgeS} {
		l.Set = true
	}
	if c.RequiresApproval == nil {
		c.RequiresApproval = new(bool)
	}
	if c.Enabled == nil {
		c.Enabled = new(bool)
		*c.Enabled = true
	}
	return c
}

// Apply returns the lane as it is after the change.
func (c LaneChange) Apply(l Lane) Lane {
	for _, one := range []struct {
		to   Limit
		into **int
	}{{c.Slots, &l.Slots}, {c.SlotsPerPod, &l.SlotsPerPod}, {c.PollIntervalMS, &l.PollIntervalMS}, {c.StaleAfterS, &l.StaleAfterS},
		{c.MaxAgeS, &l.MaxAgeS}} {
		if one.to.Set {
			*one.into = one.to.Value
		}
	}
	if c.RequiresApproval != nil {
		l.RequiresApproval = *c.RequiresApproval
	}
	if c.Enabled != nil {
		l.Enabled = *c.Enabled
	}
	if c.Kinds != nil {
		l.Kinds = slices.Sorted(slices.Values(*c.Kinds))
	}
	return l
}

// Limits of what a lane may be set to.
const (
	MaxLaneSlots      = 1_000_000
	MinPollIntervalMS = 100
	MaxPollIntervalMS = 24 * 3600 * 1000
	MaxLaneSeconds    = 10 * 365 * 24 * 3600
)

var validLane = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

// ValidateLaneName returns [ErrInvalidSetting] for a name that a new lane cannot have: letters, digits, dot, underscore and minus,
// at most 100 of them, the first a letter or digit.
func ValidateLaneName(name string) error {
	if !validLane.MatchString(name) {
		return fmt.Errorf("%w: lane %q: want 1 to 100 letters, digits, dots, underscores or minus signs", ErrInvalidSetting, name)
	}
	return nil
}

// Validate returns every mistake in the change at once, each an [ErrInvalidSetting].
func (c LaneChange) Validate() error {
	var errs []error
	between := func(name string, l Limit, least, most int) {
		if l.Value != nil && (*l.Value < least || *l.Value > most) {
			errs = append(errs, fmt.Errorf("%w: %s %d: want %d to %d, or none", ErrInvalidSetting, name, *l.Value, least, most))
		}
	}
	between("slots", c.Slots, 0, MaxLaneSlots)
	between("slots_per_pod", c.SlotsPerPod, 0, MaxLaneSlots)
	between("poll_interval_ms", c.PollIntervalMS, MinPollIntervalMS, MaxPollIntervalMS)
	between("stale_after_s", c.StaleAfterS, 0, MaxLaneSeconds)
	between("max_age_s", c.MaxAgeS, 0, MaxLaneSeconds)
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
