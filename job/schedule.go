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

// Errors returned by commands on schedules.
var (
	// ErrUnknownSchedule means that no schedule has that name.
	ErrUnknownSchedule = errors.New("unknown schedule")
	// ErrInvalidSchedule means that a schedule's expression, time zone or another setting is invalid.
	ErrInvalidSchedule = errors.New("invalid schedule")
)

// Missed is the policy for missed occurrences: those that no pod processed within [MissedAfter] of their due time.
type Missed string

// The policies for missed occurrences.
const (
	MissedCoalesce Missed = "coalesce" // submit one job for all of them, with the time of the latest
	MissedCatchUp  Missed = "catch_up" // submit a job for each of the latest occurrences, up to CatchUp
	MissedSkip     Missed = "skip"     // submit no job
)

// Overlap is the policy for an occurrence that becomes due while the previous job, or a job that follows from it, is unfinished.
type Overlap string

// The policies for overlapping occurrences.
const (
	OverlapQueue Overlap = "queue" // submit the job anyway
	OverlapSkip  Overlap = "skip"  // submit no job
)

// MissedAfter is the maximum delay at which an occurrence still counts as on time. Every occurrence processed on time submits a separate
// job, regardless of the policy for missed occurrences and of how long the submission takes. MissedAfter is many times the heartbeat
// interval.
const MissedAfter = time.Minute

// MaxCatchUp is the maximum number of missed occurrences that a schedule can catch up on. DefaultCatchUp is the default number.
const (
	MaxCatchUp     = 1000
	DefaultCatchUp = 10
)

// ScheduleSetting holds a schedule's settings.
type ScheduleSetting struct {
	// Expression sets when the schedule fires: five cron fields, six with seconds first, a macro such as @daily, "@every 15m", or a single
	// time such as "@at 2027-01-31T03:00". It has at most 200 bytes.
	Expression string `json:"expression"`
	// Zone is the IANA name of the expression's time zone. The default is UTC.
	Zone string `json:"zone"`
	// Kind and Args describe the job to submit. Args defaults to {}.
	Kind string          `json:"kind"`
	Args json.RawMessage `json:"args"`
	// Lane is the job's lane. If it is empty, the kind's lane is used.
	Lane string `json:"lane"`
	// Subject is the job's subject. It is empty by default.
	Subject string `json:"subject"`
	// Key is the job's key, such as a tenant, in at most 200 bytes. It is empty by default.
	Key string `json:"key"`
	// Priority is the job's priority, −100 to 100. The default is 10, as for all jobs.
	Priority int `json:"priority"`
	// UniqueKey is a key that the job holds while it is active. It is empty by default.
	UniqueKey string `json:"unique_key"`
	// Missed is the policy for missed occurrences. CatchUp is the maximum number of jobs that the catch_up policy submits for them.
	Missed  Missed `json:"missed"`
	CatchUp int    `json:"catch_up"`
	// Overlap is the policy for occurrences that become due while the previous job is unfinished. The default is queue.
	Overlap Overlap `json:"overlap"`
	// Paused suspends the schedule. Occurrences that become due during the pause never fire.
	Paused bool `json:"paused"`
}

// Schedule is a schedule with its current state.
type Schedule struct {
	Name string `json:"name"`
	ScheduleSetting
	FromCode  bool       `json:"from_code"` // declared in code; the declaration applies to settings that no operator has changed
	Anchor    time.Time  `json:"anchor"`    // only occurrences after this time fire; the first "@every" interval starts here
	NextAt    *time.Time `json:"next_at"`   // nil if the schedule is paused, over or not planned yet
	Error     string     `json:"error"`     // why the schedule cannot fire as configured; empty if it can
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
}

// OccurrenceOutcome is the outcome of one occurrence.
type OccurrenceOutcome string

// The outcomes of an occurrence.
const (
	OccurrenceFired     OccurrenceOutcome = "fired"     // its job was submitted in the transaction that recorded the occurrence
	OccurrenceDuplicate OccurrenceOutcome = "duplicate" // another job holds the unique key
	OccurrenceOverlap   OccurrenceOutcome = "overlap"   // skipped: the previous job has not ended
	OccurrenceMissed    OccurrenceOutcome = "missed"    // no pod processed it in time, and the policy submits no job for it
	OccurrenceFailed    OccurrenceOutcome = "failed"    // its submission was rejected
)

// Occurrence is one occurrence of a schedule.
type Occurrence struct {
	Schedule  string            `json:"schedule"`
	FireAt    time.Time         `json:"fire_at"`
	DecidedAt time.Time         `json:"decided_at"`
	Outcome   OccurrenceOutcome `json:"outcome"`
	Manual    bool              `json:"manual"`        // triggered by an operator or a program instead of the clock
	Missed    int               `json:"missed"`        // number of earlier missed occurrences that it replaces; at most 1000 are counted
	JobID     *int64            `json:"job_id,string"` // nil if no job was submitted
	State     State             `json:"state"`         // the job's current state; empty if there is no job or it was pruned
	Took      *Seconds          `json:"seconds"`       // duration of the job from start to end; nil if it has not ended
	Message   string            `json:"message"`       // why no job was submitted
}

// SchedulePreview describes a schedule expression and its next occurrences.
type SchedulePreview struct {
	Expression string      `json:"expression"`
	Zone       string      `json:"zone"`
	Words      string      `json:"words"`            // the expression in plain language
	NextFires  []time.Time `json:"next_occurrences"` // empty if it never fires again
}

// ScheduleChange describes a change to a schedule. Unset fields leave their settings unchanged or, in a new schedule, at their defaults.
type ScheduleChange struct {
	Expression *string          `json:"expression,omitempty"`
	Zone       *string          `json:"zone,omitempty"`
	Kind       *string          `json:"kind,omitempty"`
	Args       *json.RawMessage `json:"args,omitempty"`
	Lane       *string          `json:"lane,omitempty"`
	Subject    *string          `json:"subject,omitempty"`
	Key        *string          `json:"key,omitempty"`
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
	// [ErrConflict]. Nil disables the check.
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
	Words     string       `json:"words"`            // the expression in plain language
	NextFires []time.Time  `json:"next_occurrences"` // the next five occurrences; none while it is paused
	LastFires []Occurrence `json:"last_occurrences"` // the latest twenty occurrences, newest first
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
	take(c.Key, &s.Key)
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
	orElse(&c.Key, usual.Key)
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
	text("key", s.Key, MaxJobKeyBytes)
	complain(s.Key != "*", "key \"*\", which stands for all keys in limits")
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
