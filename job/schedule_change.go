package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// ScheduleChange describes a change to a schedule. Unset fields leave their settings unchanged or, in a new schedule, at their defaults.
type ScheduleChange struct {
	Expression *string          `json:"expression,omitempty"`
	Zone       *string          `json:"zone,omitempty"`
	Kind       *string          `json:"kind,omitempty"`
	Args       *json.RawMessage `json:"args,omitempty"`
	Lane       *string          `json:"lane,omitempty"`
	Subject    *string          `json:"subject,omitempty"`
	Priority   *int             `json:"priority,omitempty"`
	UniqueKey  *string          `json:"unique_key,omitempty"`
	Missed     *Missed          `json:"missed,omitempty"`
	CatchUp    *int             `json:"catch_up,omitempty"`
	Overlap    *Overlap         `json:"overlap,omitempty"`
	Paused     *bool            `json:"paused,omitempty"`

	// Existing requires the schedule to exist. If it is false, a missing schedule is created.
	Existing bool `json:"-"`
	// DryRun reports the result of the change and the next occurrences without applying the change.
	DryRun bool `json:"-"`
	// From holds the settings on which the change is based. If the schedule's current settings differ from From, the change fails with
	// [ErrScheduleMoved]. Nil disables the check.
	From *ScheduleSetting `json:"-"`
}

// ScheduleChanged is the result of a schedule change. For a dry run, it is the result that the change would have.
type ScheduleChanged struct {
	Schedule  string           `json:"schedule"`
	Created   bool             `json:"created"`
	DryRun    bool             `json:"dry_run"`
	Changed   []string         `json:"changed"`          // the JSON names of the settings that differ
	Before    *ScheduleSetting `json:"before"`           // nil if the schedule did not exist
	After     *ScheduleSetting `json:"after"`            // nil if the schedule was deleted
	Words     string           `json:"words"`            // the expression of After in plain language
	NextFires []time.Time      `json:"next_occurrences"` // the next five occurrences; none while it is paused
}

// ScheduleUse is a schedule with its latest and next occurrences.
type ScheduleUse struct {
	Schedule
	Words     string      `json:"words"`            // the expression in plain language
	NextFires []time.Time `json:"next_occurrences"` // the next five occurrences; none while it is paused
	LastFires []Fire      `json:"last_occurrences"` // the latest twenty occurrences, newest first
}

// DefaultSchedule returns the default settings for a new schedule.
func DefaultSchedule() ScheduleSetting {
	return ScheduleSetting{Zone: "UTC", Args: json.RawMessage("{}"), Priority: DefaultPriority, Missed: MissedCoalesce, CatchUp: DefaultCatchUp, Overlap: OverlapQueue}
}

// Apply returns the setting with the change applied.
func (c ScheduleChange) Apply(s ScheduleSetting) ScheduleSetting {
	take(c.Expression, &s.Expression)
	take(c.Zone, &s.Zone)
	take(c.Kind, &s.Kind)
	take(c.Args, &s.Args)
	take(c.Lane, &s.Lane)
	take(c.Subject, &s.Subject)
	take(c.Priority, &s.Priority)
	take(c.UniqueKey, &s.UniqueKey)
	take(c.Missed, &s.Missed)
	take(c.CatchUp, &s.CatchUp)
	take(c.Overlap, &s.Overlap)
	take(c.Paused, &s.Paused)
	return s
}

// Whole returns the change with every unset field set to its default. The expression and the kind have no default. A paused schedule stays
// paused.
func (c ScheduleChange) Whole() ScheduleChange {
	usual := DefaultSchedule()
	orElse(&c.Expression, usual.Expression)
	orElse(&c.Zone, usual.Zone)
	orElse(&c.Kind, usual.Kind)
	orElse(&c.Args, usual.Args)
	orElse(&c.Lane, usual.Lane)
	orElse(&c.Subject, usual.Subject)
	orElse(&c.Priority, usual.Priority)
	orElse(&c.UniqueKey, usual.UniqueKey)
	orElse(&c.Missed, usual.Missed)
	orElse(&c.CatchUp, usual.CatchUp)
	orElse(&c.Overlap, usual.Overlap)
	return c
}

func orElse[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

func take[T any](from *T, into *T) {
	if from != nil {
		*into = *from
	}
}

// A database constraint checks the same pattern.
var validScheduleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$`)

// ValidateScheduleName returns [ErrInvalidSchedule] if name is not a valid schedule name.
func ValidateScheduleName(name string) error {
	if !validScheduleName.MatchString(name) {
		return fmt.Errorf("%w: name %q: want 1 to 100 letters, digits, and _ . : - after the first", ErrInvalidSchedule, name)
	}
	if name == "preview" {
		return fmt.Errorf("%w: name %q is reserved for a route", ErrInvalidSchedule, name)
	}
	return nil
}

// Validate reports all invalid settings at once, each as an [ErrInvalidSchedule]. It does not check the expression or the time zone;
// scheduler.Parse does.
func (s ScheduleSetting) Validate() error {
	var errs []error
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidSchedule}, args...)...))
		}
	}
	text := func(name, v string, limit int) {
		complain(len(v) <= limit, "%s of %d bytes, at most %d", name, len(v), limit)
		complain(utf8.ValidString(v) && !strings.ContainsRune(v, 0), "%s is not valid text", name)
	}
	complain(s.Kind != "", "kind is missing")
	text("kind", s.Kind, MaxKindBytes)
	text("lane", s.Lane, 100)
	text("subject", s.Subject, MaxSubjectBytes)
	text("unique key", s.UniqueKey, MaxKeyBytes)
	complain(len(s.Args) <= MaxArgsBytes, "args of %d bytes, at most %d", len(s.Args), MaxArgsBytes)
	complain(json.Valid(s.Args), "args are not JSON")
	complain(s.Priority >= MinPriority && s.Priority <= MaxPriority, "priority %d, want %d to %d", s.Priority, MinPriority, MaxPriority)
	complain(s.Missed == MissedCoalesce || s.Missed == MissedCatchUp || s.Missed == MissedSkip,
		"missed %q, want %s, %s or %s", s.Missed, MissedCoalesce, MissedCatchUp, MissedSkip)
	complain(s.CatchUp >= 1 && s.CatchUp <= MaxCatchUp, "catch_up %d, want 1 to %d", s.CatchUp, MaxCatchUp)
	complain(s.Overlap == OverlapQueue || s.Overlap == OverlapSkip, "overlap %q, want %s or %s", s.Overlap, OverlapQueue, OverlapSkip)
	return errors.Join(errs...)
}
