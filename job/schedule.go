package job

import (
	"encoding/json"
	"errors"
	"time"
)

// Errors returned by commands on schedules.
var (
	// ErrUnknownSchedule means that no schedule has that name.
	ErrUnknownSchedule = errors.New("unknown schedule")
	// ErrInvalidSchedule means that a schedule's expression, time zone or another setting is invalid.
	ErrInvalidSchedule = errors.New("invalid schedule")
	// ErrScheduleMoved means that the schedule was changed after the caller read it.
	ErrScheduleMoved = errors.New("the schedule was changed concurrently")
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

// FireOutcome is the outcome of one occurrence.
type FireOutcome string

// The outcomes of an occurrence.
const (
	FireFired     FireOutcome = "fired"     // its job was submitted in the transaction that recorded the occurrence
	FireDuplicate FireOutcome = "duplicate" // another job holds the unique key
	FireOverlap   FireOutcome = "overlap"   // skipped: the previous job has not ended
	FireMissed    FireOutcome = "missed"    // no pod processed it in time, and the policy submits no job for it
	FireFailed    FireOutcome = "failed"    // its submission was rejected
)

// Fire is one occurrence of a schedule.
type Fire struct {
	Schedule  string      `json:"schedule"`
	FireAt    time.Time   `json:"fire_at"`
	DecidedAt time.Time   `json:"decided_at"`
	Outcome   FireOutcome `json:"outcome"`
	Manual    bool        `json:"manual"`        // triggered by an operator or a program instead of the clock
	Missed    int         `json:"missed"`        // number of earlier missed occurrences that it replaces; at most 1000 are counted
	JobID     *int64      `json:"job_id,string"` // nil if no job was submitted
	State     State       `json:"state"`         // the job's current state; empty if there is no job or it was pruned
	Took      *Seconds    `json:"seconds"`       // duration of the job from start to end; nil if it has not ended
	Message   string      `json:"message"`       // why no job was submitted
}

// SchedulePreview describes a schedule expression and its next occurrences.
type SchedulePreview struct {
	Expression string      `json:"expression"`
	Zone       string      `json:"zone"`
	Words      string      `json:"words"`            // the expression in plain language
	NextFires  []time.Time `json:"next_occurrences"` // empty if it never fires again
}
