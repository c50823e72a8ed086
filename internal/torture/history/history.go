// Package history defines the records that a torture run leaves in its folder, one JSON object per line, and reads them back. The records
// come from independent sources: the pods (events, jobs), the handlers (the ledger, ordered by one server outside the system), the clients
// (calls), and the nemesis (the plan, written beforehand, and the faults as they happened).
//
// Times are those of the wall clock of the one machine that everything runs on. PostgreSQL uses the same clock except where a fault skews
// it; see [Fault].
package history

import (
	"encoding/json"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The files in a run's folder.
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
	PlansFile     = "schedules.jsonl" // [Schedule], written by a trigger of the torture itself
)

// Settings holds the parameters of a run.
type Settings struct {
	Seed       uint64        `json:"seed"`
	Binary     string        `json:"binary"` // SHA-256 of the program under test
	Race       bool          `json:"race"`
	Mutant     string        `json:"mutant,omitempty"`
	Narrowed   bool          `json:"narrowed,omitempty"` // to a few faults; some invariants may have nothing to check
	PostgreSQL string        `json:"postgresql"`
	Began      time.Time     `json:"began"`
	QuietFrom  time.Time     `json:"quiet_from"` // every fault is healed and no more jobs are submitted
	Ended      time.Time     `json:"ended"`      // end of the quiet tail, when the exports were taken
	Quiescent  bool          `json:"quiescent"`  // the tail ended because nothing was left to do, rather than at its time limit
	Lease      time.Duration `json:"lease"`
	Heartbeat  time.Duration `json:"heartbeat"`
	Poll       time.Duration `json:"poll"`
	Grace      time.Duration `json:"grace"`
	Slots      int           `json:"slots"` // per pod
	MaxCrashes int           `json:"max_crashes"`
}

// Act is one line of the plan: a fault that the nemesis will cause, and when.
type Act struct {
	No     int            `json:"no"`
	At     time.Duration  `json:"at"`               // since the run began
	Fault  string         `json:"fault"`            // its name in the list of faults, such as "F24"
	Verb   string         `json:"verb"`             // such as "cut_commit"
	Pod    string         `json:"pod,omitempty"`    // the target pod, if any
	For    time.Duration  `json:"for,omitempty"`    // until it is healed
	Number int            `json:"number,omitempty"` // a count whose meaning depends on the verb: repeats of a signal, a limit, …
	Note   map[string]any `json:"note,omitempty"`
}

// Fault records how an act was carried out.
type Fault struct {
	Act
	Began  time.Time `json:"began"`
	Healed time.Time `json:"healed"`          // equal to Began if there was nothing to heal
	Boot   string    `json:"boot,omitempty"`  // boot ID of the pod that it struck, if known
	Struck int       `json:"struck"`          // number of connections, processes or jobs that it hit, or 0 if it had no effect
	Error  string    `json:"error,omitempty"` // why it could not be carried out
}

// Line is one report of a demo handler. The ledger server numbers the lines in a total order.
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
	Refused  bool      `json:"refused,omitempty"` // an effect below the job's highest fence, answered with 409
}

// What a client learned from a call.
const (
	OK      = "ok"      // the response reports success
	Refused = "refused" // the response says that nothing was done, and why
	Unknown = "unknown" // no response, or one that leaves the outcome open
)

// Call is one command of a client, from the moment before it is sent to its response.
type Call struct {
	N        int             `json:"n"`
	Client   int             `json:"client"`
	Verb     string          `json:"verb"` // submit, cancel, stop, retry, nice, or a change to a lane, the gate or a schedule
	Pod      string          `json:"pod"`  // the pod that it was sent to
	Began    time.Time       `json:"began"`
	Ended    time.Time       `json:"ended"`
	Outcome  string          `json:"outcome"`
	Status   int             `json:"status,omitempty"` // HTTP status
	Code     string          `json:"code,omitempty"`   // error code
	Job      int64           `json:"job,string,omitempty"`
	State    string          `json:"state,omitempty"` // state in the response
	Key      string          `json:"key,omitempty"`   // idempotency key of a submission
	Unique   string          `json:"unique,omitempty"`
	Kind     string          `json:"kind,omitempty"`
	Subject  string          `json:"subject,omitempty"`
	Lane     string          `json:"lane,omitempty"`
	Priority *int            `json:"priority,omitempty"`
	Delay    time.Duration   `json:"delay,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"` // as sent
	Chain    []job.Step      `json:"chain,omitempty"`

	// The new values set by the verbs lane and gate; nil means unchanged.
	Enabled *bool `json:"enabled,omitempty"`
	Paused  *bool `json:"paused,omitempty"`
	Slots   *int  `json:"slots_per_pod,omitempty"` // -1 means no limit
	All     *int  `json:"slots,omitempty"`         // over all pods
}

// Sample is one observation of the running jobs, taken as a single snapshot after T.
type Sample struct {
	T       time.Time     `json:"t"` // before the query was sent
	Took    time.Duration `json:"took"`
	Running []Running     `json:"running"`
	Pods    []PodNumbers  `json:"pods,omitempty"` // taken about once a second
	// Commit is the latest of the small commits that the sampler makes about four times a second. It is nil if there is no new one, for
	// example because a commit failed.
	Commit *Commit `json:"commit,omitempty"`
	// Leases maps the boot IDs of open pods to their lease expiry, in the same snapshot.
	Leases map[string]time.Time `json:"leases,omitempty"`
}

// Commit is a transaction that writes almost nothing. Its duration shows how slow the machine, and above all its disk, is for every
// program.
type Commit struct {
	T    time.Time     `json:"t"` // when it began
	Took time.Duration `json:"took"`
}

// Running is a job that a sample shows as running.
type Running struct {
	Job     int64  `json:"job,string"`
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	Lane    string `json:"lane"`
	Boot    string `json:"boot"`
	Fence   int64  `json:"fence"`
}

// PodNumbers holds a pod's resource usage at the time of a sample. A number that could not be read is -1.
type PodNumbers struct {
	Pod         string `json:"pod"`
	Goroutines  int    `json:"goroutines"`
	Files       int    `json:"files"` // open file descriptors
	RSS         int64  `json:"rss"`   // bytes
	Connections int    `json:"connections"`
	Stuck       int    `json:"stuck"` // handlers that ignore their cancelled context
	PID         int    `json:"pid"`   // process that the numbers belong to, or 0 if there was none
	// Starved is the total time for which the process's threads have waited for a processor since it started. It shows the load from other
	// programs, and is 0 if the system does not report it.
	Starved time.Duration `json:"starved,omitempty"`
	// Sessions counts the connections by state: idle, idle in transaction, busy, or the event that they wait for inside the server, such as
	// Lock/transactionid.
	Sessions map[string]int `json:"sessions,omitempty"`
}

// Row is a row of the table demo_rows, which a demo.tx job writes in the transaction that ends the job.
type Row struct {
	Job   int64 `json:"job,string"`
	Fence int64 `json:"fence"`
	N     int   `json:"n"` // starts at 1
}

// Pipeline is the status of a pipeline, as Trapeze reports it.
type Pipeline struct {
	ID     int64      `json:"id,string"` // ID of its first job
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
	N          int64      `json:"n"` // orders the changes
	At         time.Time  `json:"at"`
	Schedule   string     `json:"schedule"`
	Expression string     `json:"expression"`
	Paused     bool       `json:"paused"`
	Anchor     time.Time  `json:"anchor"`    // all fires are after this time
	Undecided  *time.Time `json:"undecided"` // first undecided fire before the change, or nil if there was none
}

// Process records one run of a pod, from start to exit. It is written after the exit.
type Process struct {
	Pod       string     `json:"pod"`             // or name of the remote worker
	Via       []string   `json:"via,omitempty"`   // pods that a remote worker connects to; empty for a pod
	Slots     int        `json:"slots,omitempty"` // 0 means the value from the settings
	Boots     []string   `json:"boots"`           // a process takes a new boot ID after losing its lease
	PID       int        `json:"pid"`
	Race      bool       `json:"race"`
	Started   time.Time  `json:"started"`
	Ready     *time.Time `json:"ready"`               // time of its readiness message, or nil if it never became ready
	TermAt    *time.Time `json:"term_at,omitempty"`   // time of the first SIGTERM
	TermsGot  int        `json:"terms_got,omitempty"` // number of SIGTERMs sent
	Ended     time.Time  `json:"ended"`
	Exit      int        `json:"exit"`             // exit code, or -1 after a signal
	Signal    string     `json:"signal,omitempty"` // signal that killed it
	Races     int        `json:"races,omitempty"`  // data races reported by the race detector
	Fired     []string   `json:"fired,omitempty"`  // failpoints that fired in it
	StoppedBy string     `json:"told,omitempty"`   // signal or failpoint, or empty if neither stopped it
	Log       string     `json:"log"`              // path of its log in the run's folder
}
