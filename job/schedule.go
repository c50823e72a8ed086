package job

import (
	"encoding/json"
	"errors"
	"time"
)

// Errors of schedules.
var (
	// ErrUnknownSchedule means that no schedule has that name.
	ErrUnknownSchedule = errors.New("unknown schedule")
	// ErrInvalidSchedule means that a schedule's expression, zone or another of its settings is invalid.
	ErrInvalidSchedule = errors.New("invalid schedule")
	// ErrScheduleMoved means that the schedule was changed after the caller read it.
	ErrScheduleMoved = errors.New("the schedule was changed concurrently")
)

// Missed is the policy for missed occurrences: those that no pod processed within [MissedAfter] of their time.
type Missed string

// The policies for missed occurrences.
const (
	MissedCoalesce Missed = "coalesce" // one job for all of them, with the time of the latest
	MissedCatchUp  Missed = "catch_up" // a job for each of the latest, as many as CatchUp allows
	MissedSkip     Missed = "skip"     // no job
)

// Overlap is the policy for an occurrence whose previous job, or a job that follows from it, has not ended.
type Overlap string

// The policies for overlaps.
const (
	OverlapQueue Overlap = "queue" // its job is submitted anyway
	OverlapSkip  Overlap = "skip"  // no job is submitted
)

// MissedAfter is the longest delay after which an occurrence still counts as on time. Every occurrence on time submits its own job,
// regardless of the policy for missed ones and of how long the submission takes. It spans many heartbeats.
const MissedAfter = time.Minute

// MaxCatchUp is the largest number of missed occurrences that a schedule may catch up on; DefaultCatchUp is the default.
const (
	MaxCatchUp     = 1000
	DefaultCatchUp = 10
)

// ScheduleSetting holds the settings of a schedule.
type ScheduleSetting struct {
	// Expression sets when the schedule fires: five or six cron fields (seconds first, if six), a macro such as @daily, "@every 15m",
	// or once: "@at 2027-01-31T03:00". At most 200 bytes.
	Expression string `json:"expression"`
	// Zone is the IANA name of the expression's time zone. Default UTC.
	Zone string `json:"zone"`
	// Kind and Args describe the job to submit. Default args: {}.
	Kind string          `json:"kind"`
	Args json.RawMessage `json:"args"`
	// Lane is the job's lane. Default, empty: its kind's.
	Lane string `json:"lane"`
	// Subject is the job's subject. Default, empty: none.
	Subject string `json:"subject"`
	// Priority is the job's priority, −100 to 100. Default 10, as for all jobs.
	Priority int `json:"priority"`
	// UniqueKey is a key that the job holds while it is active. Default, empty: none.
	UniqueKey string `json:"unique_key"`
	// Missed is the policy for missed occurrences. CatchUp limits how many of them catch_up submits.
	Missed  Missed `json:"missed"`
	CatchUp int    `json:"catch_up"`
	// Overlap is the policy for occurrences during the previous job. Default queue.
	Overlap Overlap `json:"overlap"`
	// Paused stops the schedule. Occurrences while it is paused are not caught up on.
	Paused bool `json:"paused"`
}

// Schedule is a schedule in its current state.
type Schedule struct {
	Name string `json:"name"`
	ScheduleSetting
	FromCode  bool       `json:"from_code"` // declared by the program; its declaration applies where no operator changed a setting
	Anchor    time.Time  `json:"anchor"`    // occurrences come after it; "@every" counts from it
	NextAt    *time.Time `json:"next_at"`   // nil: paused, over, or not planned yet
	Error     string     `json:"error"`     // why it does not fire as set; empty: it does
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
}

// FireOutcome is the outcome of one occurrence.
type FireOutcome string

// The outcomes of an occurrence.
const (
	FireFired     FireOutcome = "fired"     // its job was submitted in the same commit
	FireDuplicate FireOutcome = "duplicate" // an earlier job holds the unique key
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
	Manual    bool        `json:"manual"`        // an operator or a program triggered it, not the clock
	Missed    int         `json:"missed"`        // earlier missed occurrences that it stands for; at most 1000 are counted
	JobID     *int64      `json:"job_id,string"` // nil: no job was submitted
	State     State       `json:"state"`         // the current state of that job; empty: none, or pruned
	Took      *Seconds    `json:"seconds"`       // from its job's start to its end; nil: not ended
	Message   string      `json:"message"`       // why there is no job
}
