package job

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Scopes of a [KeyLimit].
const (
	LaneScope = "lane"
	KindScope = "kind"
)

// EachKey is the key of a [KeyLimit] for all keys without a separate limit. The key of a limit for all jobs of a lane together is empty.
const EachKey = "*"

// MaxRate is the largest rate and burst, and MaxRatePer the longest interval of a rate.
const (
	MaxRate    = 1_000_000
	MaxRatePer = 365 * 24 * time.Hour
)

// MaxKeyWeight is the largest weight of a [KeyLimit].
const MaxKeyWeight = 100

// LimitOf identifies a [KeyLimit].
type LimitOf struct {
	Scope string `json:"scope"` // lane or kind
	Name  string `json:"name"`  // of the lane or kind
	Key   string `json:"key"`   // 1 to 200 bytes; * is each key; empty is all jobs of a lane
}

// KeyLimit limits the jobs of one key, or of each key, in a lane or of a kind, or the rate at which all jobs of a lane start. If a value of one key is nil, the value for each key applies. If that is nil
// as well, the default applies: a kind has the limit that its program declares, and a lane has none.
type KeyLimit struct {
	LimitOf
	Slots  *int `json:"slots"`  // the number of jobs that may run at a time, on all pods together, at least 1
	Weight *int `json:"weight"` // of a lane only: the key's share beside keys of weight 1, from 1 to 100
	// Rate is the number of jobs of a lane that start per interval, on all pods together. In any period of t seconds, at most Burst + t * Rate / Per jobs
	// start. A rate has an empty key.
	Rate  *int     `json:"rate"`
	Per   *Seconds `json:"per"`   // the interval, in whole seconds; 1 second if a rate is set without one
	Burst *int     `json:"burst"` // the number of jobs that may start at once after a pause; 1 if a rate is set without one
}

// Some reports whether the limit has a value.
func (l KeyLimit) Some() bool { return l.Slots != nil || l.Weight != nil || l.Rate != nil }

// KeyLimitChange describes a change to a limit. Unset fields leave their values unchanged. A limit without any value is removed.
type KeyLimitChange struct {
	LimitOf
	Slots  Limit[int] `json:"slots,omitzero"`
	Weight Limit[int] `json:"weight,omitzero"`
	Rate   Limit[int] `json:"rate,omitzero"` // no rate removes Per and Burst as well
	Per    *Seconds   `json:"per,omitempty"`
	Burst  *int       `json:"burst,omitempty"`
}

// KeyLimitChanged is the result of changing a limit.
type KeyLimitChanged struct {
	LimitOf
	Changed []string  `json:"changed"` // the JSON names of the values that differ
	Before  *KeyLimit `json:"before"`  // nil if there was no limit
	After   *KeyLimit `json:"after"`   // nil if the limit was removed
	// Held is the number of pending jobs that wait again because the limit is lower. Running jobs continue.
	Held int `json:"held"`
}

// Whole returns the change with every unset field set to no limit.
func (c KeyLimitChange) Whole() KeyLimitChange {
	c.Slots.Set, c.Weight.Set, c.Rate.Set = true, true, true
	return c
}

// Apply returns the limit with the change applied.
func (c KeyLimitChange) Apply(l KeyLimit) KeyLimit {
	l.LimitOf = c.LimitOf
	c.Slots.apply(&l.Slots)
	c.Weight.apply(&l.Weight)
	c.Rate.apply(&l.Rate)
	if l.Rate == nil {
		l.Per, l.Burst = nil, nil
		return l
	}
	second, once := Seconds(time.Second), 1
	l.Per, l.Burst = cmp.Or(c.Per, l.Per, &second), cmp.Or(c.Burst, l.Burst, &once)
	return l
}

// Validate returns [ErrInvalidSetting] unless the limit can exist. It does not check whether the lane exists.
func (l LimitOf) Validate() error {
	switch {
	case l.Scope != LaneScope && l.Scope != KindScope:
		return fmt.Errorf("%w: scope %.40q: want lane or kind", ErrInvalidSetting, l.Scope)
	case l.Name == "" || len(l.Name) > MaxKindBytes || !storable(l.Name):
		return fmt.Errorf("%w: the name of a %s has %d bytes: want 1 to %d bytes of text", ErrInvalidSetting, l.Scope, len(l.Name), MaxKindBytes)
	case l.Key == "" && l.Scope == KindScope:
		return fmt.Errorf("%w: the key is empty: name a key, or * for each key; for the rate of a kind, give it a lane of its own, and that lane the rate", ErrInvalidSetting)
	case len(l.Key) > MaxJobKeyBytes || !storable(l.Key):
		return fmt.Errorf("%w: the key has %d bytes: want 1 to %d bytes of text", ErrInvalidSetting, len(l.Key), MaxJobKeyBytes)
	}
	return nil
}

// Validate reports all invalid values at once, each as an [ErrInvalidSetting].
func (c KeyLimitChange) Validate() error {
	errs := []error{c.LimitOf.Validate(), c.Slots.validate("slots", 1, MaxLaneSlots, 1), c.Weight.validate("weight", 1, MaxKeyWeight, 1)}
	if c.Scope == KindScope && c.Weight.Value != nil {
		errs = append(errs, fmt.Errorf("%w: weight of a kind: set the weight in a lane", ErrInvalidSetting))
	}
	if l := c.Rate; l.Set && l.Value != nil && (*l.Value < 1 || *l.Value > MaxRate) {
		errs = append(errs, fmt.Errorf("%w: rate of %d: want 1 to %d, or none", ErrInvalidSetting, *l.Value, MaxRate))
	}
	if p := c.Per; p != nil && (p.Duration() < time.Second || p.Duration() > MaxRatePer || p.Duration()%time.Second != 0) {
		errs = append(errs, fmt.Errorf("%w: interval of %s for a rate: want whole seconds, from 1s to a year", ErrInvalidSetting, p))
	}
	if c.Burst != nil && (*c.Burst < 1 || *c.Burst > MaxRate) {
		errs = append(errs, fmt.Errorf("%w: burst of %d: want 1 to %d", ErrInvalidSetting, *c.Burst, MaxRate))
	}
	rated := c.Rate.Value != nil || c.Per != nil || c.Burst != nil
	switch {
	case c.Key == "" && (c.Slots.Value != nil || c.Weight.Value != nil):
		errs = append(errs, fmt.Errorf("%w: slots and weight are of a key: name a key, or * for each key; the slots of the whole lane are a setting of the lane", ErrInvalidSetting))
	case c.Key != "" && rated:
		errs = append(errs, fmt.Errorf("%w: a rate is for all jobs of a lane, not for a key: give each key a lane of its own, which a template such as tenant/* makes, and the template the rate", ErrInvalidSetting))
	case !c.Slots.Set && !c.Weight.Set && !c.Rate.Set && !rated:
		errs = append(errs, fmt.Errorf("%w: the limit sets nothing: want slots, weight or rate", ErrInvalidSetting))
	}
	return errors.Join(errs...)
}

func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// KeyLimitFilter selects limits, and the jobs that wait for them. Empty fields match everything.
type KeyLimitFilter = LimitOf

// KeyUse describes the jobs of a key, in one lane and of one kind, that wait for other jobs of their key.
type KeyUse struct {
	Key     string    `json:"key"`
	Lane    string    `json:"lane"`
	Kind    string    `json:"kind"`
	Waiting int       `json:"waiting"` // at most [MaxKeyWaiting], which means as many or more
	Oldest  time.Time `json:"oldest"`  // when the first of them became due
	// LaneUsed is the number of the key's jobs in the lane, of all kinds, that run or may run next. LaneLimit is its maximum.
	LaneUsed  int `json:"lane_used"`
	LaneLimit int `json:"lane_limit"`
	// KindUsed is the number of the key's jobs of the kind, in all lanes, that run or may run next. KindLimit is its maximum; nil means no limit.
	KindUsed  int    `json:"kind_used"`
	KindLimit *int   `json:"kind_limit"`
	Binds     string `json:"binds"` // see [BindsLane] and so on; empty: the lane is closed, or a job is about to be admitted
}

// Values of [KeyUse].Binds.
const (
	BindsLane   = "lane"   // the lane's limit of the key
	BindsWindow = "window" // the key's fair share of a lane without a limit
	BindsKind   = "kind"   // the kind's limit of the key
)

// MaxKeyWaiting is the largest value of [KeyUse].Waiting.
const MaxKeyWaiting = 1000

// KeysInUse lists the keys that wait most.
type KeysInUse struct {
	Keys []KeyUse `json:"keys"` // at most 100, those with the most waiting jobs first
	// Complete means that all waiting keys were examined. Otherwise, some keys were chosen by a random sample.
	Complete bool `json:"complete"`
}
