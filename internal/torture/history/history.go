// Package history is what a torture run leaves in its folder, one JSON object a line, and how it is read back. The files
// are written by different hands, which is the point: what the pods say (events, jobs), what the handlers did (the
// ledger, ordered by one server outside the system), what the clients were told (calls), and what was done to them all
// (the plan before it was done, the faults as they were).
//
// Moments are wall clock of the one machine that everything runs on. PostgreSQL shares that clock except where a fault
// skews it; see [Fault].
package history

import (
	"encoding/json"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The files of a run's folder.
const (
	SettingsFile = "settings.json"
	PlanFile     = "plan.jsonl"    // [Act], written before the first one
	FaultsFile   = "faults.jsonl"  // [Fault]
	LedgerFile   = "ledger.jsonl"  // [Line]
	CallsFile    = "calls.jsonl"   // [Call]
	SamplesFile  = "samples.jsonl" // [Sample]
	PodsFile     = "pods.jsonl"    // [Process]
	JobsFile     = "jobs.jsonl"    // [job.Job], after the quiet tail
	EventsFile   = "events.jsonl"  // [job.Event], in the same snapshot
	RowsFile     = "rows.jsonl"    // [Row], in the same snapshot

	PipelinesFile = "pipelines.jsonl" // [Pipeline], in the same snapshot
	FiresFile     = "fires.jsonl"     // [Fire], in the same snapshot
	PlansFile     = "schedules.jsonl" // [Schedule], written by a trigger of the torture's own
)

// Settings are what a run was made with.
type Settings struct {
	Seed       uint64        `json:"seed"`
	Binary     string        `json:"binary"` // SHA-256 of the program under test
	Race       bool          `json:"race"`
	Mutant     string        `json:"mutant,omitempty"`
	Narrowed   bool          `json:"narrowed,omitempty"` // to a few faults: some invariants may have nothing to be checked on
	PostgreSQL string        `json:"postgresql"`
	Began      time.Time     `json:"began"`
	QuietFrom  time.Time     `json:"quiet_from"` // every fault healed, no more submissions
	Ended      time.Time     `json:"ended"`      // of the quiet tail, when the exports were taken
	Quiescent  bool          `json:"quiescent"`  // the tail ended because nothing was left to do, not because its time was up
	Lease      time.Duration `json:"lease"`
	Heartbeat  time.Duration `json:"heartbeat"`
	Poll       time.Duration `json:"poll"`
	Grace      time.Duration `json:"grace"`
	Slots      int           `json:"slots"` // of one pod
	MaxCrashes int           `json:"max_crashes"`
}

// Act is one line of the plan: what the nemesis will do, and when.
type Act struct {
	No     int            `json:"no"`
	At     time.Duration  `json:"at"`               // since the run began
	Fault  string         `json:"fault"`            // its name in the list of faults, "F24"
	Verb   string         `json:"verb"`             // "cut_commit"
	Pod    string         `json:"pod,omitempty"`    // the pod it is aimed at, if any
	For    time.Duration  `json:"for,omitempty"`    // until it is healed
	Number int            `json:"number,omitempty"` // what the verb counts: a signal's repeats, a limit, …
	Note   map[string]any `json:"note,omitempty"`
}

// Fault records how one act was carried out.
type Fault struct {
	Act
	Began  time.Time `json:"began"`
	Healed time.Time `json:"healed"`          // as Began for what needs no healing
	Boot   string    `json:"boot,omitempty"`  // of the pod it struck, when that was known
	Struck int       `json:"struck"`          // what it hit: connections, processes, jobs; 0 means that it hit nothing
	Error  string    `json:"error,omitempty"` // why it could not be done
}

// Line is one report of a demo handler, stamped by the ledger server with a total order.
type Line struct {
	N        int64     `json:"n"`
	T        time.Time `json:"t"`
	Pod      string    `json:"pod"`
	Boot     string    `json:"boot"`
	Job      int64     `json:"job,string"`
	Kind     string    `json:"kind"`
	Subject  string    `json:"subject"`
	Lane     string    `json:"lane"`
	Pipeline int64     `json:"pipeline,string"`
	Attempt  int       `json:"attempt"`
	Fence    int64     `json:"fence"`
	Event    string    `json:"ev"` // start, tick, effect, ctx_done, end
	Cause    string    `json:"cause"`
	Refused  bool      `json:"refused,omitempty"` // an effect below the job's highest fence, answered 409
}

// What a client learnt of a call.
const (
	OK      = "ok"      // done, and so answered
	Refused = "refused" // answered: not done, with the reason
	Unknown = "unknown" // no answer, or one that says that the outcome is unknown
)

// Call is one command of a client, from before it was sent until its answer.
type Call struct {
	N        int             `json:"n"`
	Client   int             `json:"client"`
	Verb     string          `json:"verb"` // submit, cancel, stop, retry, nice, or a change of a lane, the gate or a schedule
	Pod      string          `json:"pod"`  // whom it asked
	Began    time.Time       `json:"began"`
	Ended    time.Time       `json:"ended"`
	Outcome  string          `json:"outcome"`
	Status   int             `json:"status,omitempty"` // of HTTP
	Code     string          `json:"code,omitempty"`   // of an error
	Job      int64           `json:"job,string,omitempty"`
	State    string          `json:"state,omitempty"` // answered
	Key      string          `json:"key,omitempty"`   // the idempotency key of a submission
	Unique   string          `json:"unique,omitempty"`
	Kind     string          `json:"kind,omitempty"`
	Subject  string          `json:"subject,omitempty"`
	Lane     string          `json:"lane,omitempty"`
	Priority *int            `json:"priority,omitempty"`
	Delay    time.Duration   `json:"delay,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"` // as sent
	Chain    []job.Step      `json:"chain,omitempty"`

	// Of the verbs lane and gate, what was changed to what; nil is unchanged.
	Enabled *bool `json:"enabled,omitempty"`
	Paused  *bool `json:"paused,omitempty"`
	Slots   *int  `json:"slots_per_pod,omitempty"` // -1: no limit
	All     *int  `json:"slots,omitempty"`         // of all pods together
}

// Sample is what one look saw, the running jobs in one snapshot, taken after T.
type Sample struct {
	T       time.Time     `json:"t"` // before the database was asked
	Took    time.Duration `json:"took"`
	Running []Running     `json:"running"`
	Pods    []PodNumbers  `json:"pods,omitempty"` // taken about once a second
	// Commit is the latest small commit that the sampler made itself, about four a second, when it is new. One that failed
	// leaves none: then this is nil for longer.
	Commit *Commit `json:"commit,omitempty"`
	// Leases are the ends of the open pods' leases by boot id, in the same snapshot.
	Leases map[string]time.Time `json:"leases,omitempty"`
}

// Commit is a transaction that writes next to nothing: what it takes is what the machine, its disk above all, takes of
// everybody.
type Commit struct {
	T    time.Time     `json:"t"` // when it began
	Took time.Duration `json:"took"`
}

// Running is a running job of a sample.
type Running struct {
	Job     int64  `json:"job,string"`
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	Lane    string `json:"lane"`
	Boot    string `json:"boot"`
	Fence   int64  `json:"fence"`
}

// PodNumbers are what a pod used when a sample was taken. A number that could not be had is -1.
type PodNumbers struct {
	Pod         string `json:"pod"`
	Goroutines  int    `json:"goroutines"`
	Files       int    `json:"files"` // open file descriptors
	RSS         int64  `json:"rss"`   // bytes
	Connections int    `json:"connections"`
	Stuck       int    `json:"stuck"` // handlers that ignore the end of their context
	PID         int    `json:"pid"`   // whose numbers these are; 0: there was no process
	// Starved is how long its threads have waited for a processor since it began, all together: what other programs of
	// the machine take from it. 0 where the system does not say.
	Starved time.Duration `json:"starved,omitempty"`
	// Sessions are the connections by what they are at: idle, idle in transaction, busy, or what they wait for inside the
	// server, such as Lock/transactionid.
	Sessions map[string]int `json:"sessions,omitempty"`
}

// Row is a row of the table demo_rows, which a demo.tx job writes in the transaction that ends it.
type Row struct {
	Job   int64 `json:"job,string"`
	Fence int64 `json:"fence"`
	N     int   `json:"n"` // from 1
}

// Pipeline is the status of a pipeline, as Trapeze reports it.
type Pipeline struct {
	ID     int64      `json:"id,string"` // of its first job
	Status job.Status `json:"status"`
}

// Fire is the outcome of one occurrence of a schedule, read from its row.
type Fire struct {
	Schedule  string    `json:"schedule"`
	FireAt    time.Time `json:"fire_at"`
	DecidedAt time.Time `json:"decided_at"`
	Outcome   string    `json:"outcome"`
	Manual    bool      `json:"manual"`
	Missed    int       `json:"missed"` // earlier occurrences that it replaces
	Job       *int64    `json:"job,string"`
}

// Schedule is a version of a schedule, recorded in the transaction that made the change.
type Schedule struct {
	N          int64      `json:"n"` // in the order of the changes
	At         time.Time  `json:"at"`
	Schedule   string     `json:"schedule"`
	Expression string     `json:"expression"`
	Paused     bool       `json:"paused"`
	Anchor     time.Time  `json:"anchor"`    // its fires are after this
	Undecided  *time.Time `json:"undecided"` // the first fire, as it was before, of which nothing had been decided; nil: there was none
}

// Process records one run of a pod, from start to exit. It is written after the exit.
type Process struct {
	Pod       string     `json:"pod"`             // or the name of a remote worker
	Via       []string   `json:"via,omitempty"`   // the pods that a remote worker talks to; none: a pod
	Slots     int        `json:"slots,omitempty"` // 0: as the settings say
	Boots     []string   `json:"boots"`           // it takes a new one when its lease was lost
	PID       int        `json:"pid"`
	Race      bool       `json:"race"`
	Started   time.Time  `json:"started"`
	Ready     *time.Time `json:"ready"`               // when it said so; nil: never
	TermAt    *time.Time `json:"term_at,omitempty"`   // of the first SIGTERM
	TermsGot  int        `json:"terms_got,omitempty"` // how many it was sent
	Ended     time.Time  `json:"ended"`
	Exit      int        `json:"exit"`             // its code; -1 after a signal
	Signal    string     `json:"signal,omitempty"` // that ended it
	Races     int        `json:"races,omitempty"`  // data races that its detector reported
	Fired     []string   `json:"fired,omitempty"`  // failpoints that fired in it
	StoppedBy string     `json:"told,omitempty"`   // signal or failpoint; "" when neither stopped it
	Log       string     `json:"log"`              // its log, in the run's folder
}
