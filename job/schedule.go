package job

import (
	"encoding/json"
	"errors"
	"time"
)

// Errors of schedules.
var (
	// ErrUnknownSchedule says that there is no schedule of that name.
	ErrUnknownSchedule = errors.New("unknown schedule")
	// ErrInvalidSchedule says that a schedule cannot be as it was asked for: its expression, its zone or another of its settings.
	ErrInvalidSchedule = errors.New("invalid schedule")
	// ErrScheduleMoved says that somebody else has changed the schedule since it was looked at.
	ErrScheduleMoved = errors.New("the schedule was changed concurrently")
)

// Missed says what becomes of the fires that nobody was there for: those for which no pod looked within [MissedAfter] after their time.
type Missed string

// The policies for missed fires.
const (
	MissedCoalesce Missed = "coalesce" // one job for all of them, for the time of the latest
	MissedCatchUp  Missed = "catch_up" // a job for each, of the latest as many as the schedule says
	MissedSkip     Missed = "skip"     // none
)

// Overlap says what becomes of a fire while the job of the one before has not ended, and what follows from it in its pipeline.
type Overlap string

// The policies for overlaps.
const (
	OverlapQueue Overlap = "queue" // its job is submitted all the same
	OverlapSkip  Overlap = "skip"  // it makes no job
)

// MissedAfter is how late a pod may look for a fire that is still on time then: every fire on time makes a job of its own, whatever the
// policy for missed ones, and however long it takes until all that is due is decided. It is many heartbeats.
const MissedAfter = time.Minute

// MaxCatchUp is the largest number of missed fires that a schedule may make up for, and DefaultCatchUp the usual one.
const (
	MaxCatchUp     = 1000
	DefaultCatchUp = 10
)

// ScheduleSetting is what people say of a schedule.
type ScheduleSetting struct {
	// Expression says when: five or six fields of cron (seconds first, if six), a macro such as @daily, "@every 15m", or once:
	// "@at 2027-01-31T03:00". At most 200 bytes.
	Expression string `json:"expression"`
	// Zone is the time zone that the expression is read in, by its IANA name. Default UTC.
	Zone string `json:"zone"`
	// Kind and Args are of the job that a fire submits. Default args: {}.
	Kind string          `json:"kind"`
	Args json.RawMessage `json:"args"`
	// Lane is the job's lane. Default, empty: its kind's.
	Lane string `json:"lane"`
	// Subject is what the job is about. Default, empty: nothing.
	Subject string `json:"subject"`
	// Priority is the job's: −100 to 100. Default 10, as of all jobs.
	Priority int `json:"priority"`
	// UniqueKey is the job's unique key while it is active. Default, empty: none.
	UniqueKey string `json:"unique_key"`
	// Missed is the policy for missed fires, CatchUp the number of those that catch_up makes up for.
	Missed  Missed `json:"missed"`
	CatchUp int    `json:"catch_up"`
	// Overlap is the policy for fires that come while the job of the one before goes on. Default queue.
	Overlap Overlap `json:"overlap"`
	// Paused schedules do not fire; what would have fired meanwhile is not made up for.
	Paused bool `json:"paused"`
}

// Schedule is a schedule as it stands.
type Schedule struct {
	Name string `json:"name"`
	ScheduleSetting
	FromCode  bool       `json:"from_code"` // declared by the program; what it says counts where no operator said otherwise
	Anchor    time.Time  `json:"anchor"`    // fires are after it; "@every" counts from it
	NextAt    *time.Time `json:"next_at"`   // nil: paused, over, or not planned yet
	Error     string     `json:"error"`     // why it does not fire as it should; empty: it does
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
}

// FireOutcome is what became of one fire.
type FireOutcome string

// The outcomes of fires.
const (
	FireFired     FireOutcome = "fired"     // its job was submitted in the same commit
	FireDuplicate FireOutcome = "duplicate" // the unique key is held by an earlier job
	FireOverlap   FireOutcome = "overlap"   // skipped: the job of the one before goes on
	FireMissed    FireOutcome = "missed"    // nobody was there, and the policy makes no job for it
	FireFailed    FireOutcome = "failed"    // its job was refused
)

// Fire is one fire of a schedule.
type Fire struct {
	Schedule  string      `json:"schedule"`
	FireAt    time.Time   `json:"fire_at"`
	DecidedAt time.Time   `json:"decided_at"`
	Outcome   FireOutcome `json:"outcome"`
	Manual    bool        `json:"manual"`        // triggered by somebody, not by the clock
	Missed    int         `json:"missed"`        // missed fires before it that it stands for; at most 1000 are counted
	JobID     *int64      `json:"job_id,string"` // nil: none was made
	State     State       `json:"state"`         // of that job now; empty: none, or forgotten since
	Took      *Seconds    `json:"seconds"`       // from its job's start to its end; nil: not ended
	Message   string      `json:"message"`       // why there is no job
}
