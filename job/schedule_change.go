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

// ScheduleChange is what becomes different in a schedule; what it does not mention stays, or has its default in a new one.
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

	// Existing makes the change one of a schedule that is there: without it, one that is not is created.
	Existing bool `json:"-"`
	// DryRun tells what would change and when it would fire, and changes nothing.
	DryRun bool `json:"-"`
	// From is the setting that the change was decided upon: a schedule that is set otherwise stays as it is, with [ErrScheduleMoved].
	// Default: whatever it is.
	From *ScheduleSetting `json:"-"`
}

// ScheduleChanged is what became, or in a dry run would become, of a schedule.
type ScheduleChanged struct {
	Schedule  string           `json:"schedule"`
	Created   bool             `json:"created"`
	DryRun    bool             `json:"dry_run"`
	Changed   []string         `json:"changed"`    // the settings that differ, by their names in JSON
	Before    *ScheduleSetting `json:"before"`     // nil: there was none
	After     *ScheduleSetting `json:"after"`      // nil: it was deleted
	Words     string           `json:"words"`      // what After says, in plain language
	NextFires []time.Time      `json:"next_fires"` // the next five, if it is not paused
}

// ScheduleUse is a schedule with what it does.
type ScheduleUse struct {
	Schedule
	Words     string      `json:"words"`      // what the expression says, in plain language
	NextFires []time.Time `json:"next_fires"` // the next five; none while it is paused
	LastFires []Fire      `json:"last_fires"` // the latest twenty, newest first
}

// DefaultSchedule is the setting of a new schedule of which nothing is said.
func DefaultSchedule() ScheduleSetting {
	return ScheduleSetting{Zone: "UTC", Args: json.RawMessage("{}"), Priority: DefaultPriority, Missed: MissedCoalesce, CatchUp: DefaultCatchUp, Overlap: OverlapQueue}
}

// Apply returns the setting as it is after the change.
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

// Whole is the change with everything that it does not mention at its default, but for the expression and the kind, which have none; one
// that is paused stays so.
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

// validScheduleName is also a check of the database.
var validScheduleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$`)

// ValidateScheduleName returns [ErrInvalidSchedule] for what is no name of a schedule.
func ValidateScheduleName(name string) error {
	if !validScheduleName.MatchString(name) {
		return fmt.Errorf("%w: name %q: want 1 to 100 letters, digits, and _ . : - after the first", ErrInvalidSchedule, name)
	}
	if name == "preview" {
		return fmt.Errorf("%w: name %q is reserved for a route", ErrInvalidSchedule, name)
	}
	return nil
}

// Validate returns every mistake at once, each an [ErrInvalidSchedule], but for those of the expression and the zone, which
// scheduler.Parse finds.
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
