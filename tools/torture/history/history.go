// Package history defines the records that a torture run leaves in its folder, one JSON object per line, and reads them back. The records
// come from independent sources: the pods (events and jobs), the handlers (the ledger, which is ordered by a single server outside the
// system), the clients (calls), and the nemesis (the plan, written beforehand, and the faults as they happened).
//
// Everything runs on one machine, and all times come from its wall clock. PostgreSQL uses the same clock except where a fault skews it.
package history

import (
	"encoding/json"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The files in a run's folder.
const (
	SettingsFile = "settings.json"
	PlanFile     = "plan.jsonl"    // [Act], written before the first fault is injected
	FaultsFile   = "faults.jsonl"  // [Fault]
	LedgerFile   = "ledger.jsonl"  // [Line]
	CallsFile    = "calls.jsonl"   // [Call]
	SamplesFile  = "samples.jsonl" // [Sample]
	PodsFile     = "pods.jsonl"    // [Process]
	JobsFile     = "jobs.jsonl"    // [job.JobRow], after the quiet tail
	EventsFile   = "events.jsonl"  // [job.Event], in the same snapshot
	RowsFile     = "rows.jsonl"    // [Row], in the same snapshot

	PipelinesFile   = "pipelines.jsonl"   // [Pipeline], in the same snapshot
	OccurrencesFile = "occurrences.jsonl" // [Fire], in the same snapshot
	SchedulesFile   = "schedules.jsonl"   // [Schedule], written by the torture's own trigger
	KeysFile        = "keys.jsonl"        // [Keyed], in the same snapshot
)

// Settings holds the parameters of a run.
type Settings struct {
	Seed       uint64        `json:"seed"`
	Binary     string        `json:"binary"` // SHA-256 of the program under test
	Race       bool          `json:"race"`
	Mutant     string        `json:"mutant,omitempty"`
	Narrowed   bool          `json:"narrowed,omitempty"` // the run was limited to a few faults; some invariants may have nothing to check
	PostgreSQL string        `json:"postgresql"`
	Began      time.Time     `json:"began"`
	QuietFrom  time.Time     `json:"quiet_from"` // the time from which all faults have been undone and no more jobs are submitted
	Ended      time.Time     `json:"ended"`      // end of the quiet tail, when the exports were taken
	Quiescent  bool          `json:"quiescent"`  // the quiet tail ended because nothing was left to do, rather than because it reached its time limit
	Lease      time.Duration `json:"lease"`
	Heartbeat  time.Duration `json:"heartbeat"`
	Poll       time.Duration `json:"poll"`
	Grace      time.Duration `json:"grace"`
	Slots      int           `json:"slots"` // per pod
	MaxCrashes int           `json:"max_crashes"`
}

// Act is one line of the plan. It specifies which fault the nemesis will inject and when.
type Act struct {
	No     int            `json:"no"`
	At     time.Duration  `json:"at"`               // time since the run began
	Fault  string         `json:"fault"`            // the fault's name in the list of faults, such as "F24"
	Verb   string         `json:"verb"`             // name of the injector, such as "cut_commit"
	Pod    string         `json:"pod,omitempty"`    // the target pod, if any
	For    time.Duration  `json:"for,omitempty"`    // time until the fault is undone
	Number int            `json:"number,omitempty"` // a count whose meaning depends on the injector, such as how often to repeat a signal
	Note   map[string]any `json:"note,omitempty"`
}

// Fault records how a planned fault was injected.
type Fault struct {
	Act
	Began  time.Time `json:"began"`
	Healed time.Time `json:"healed"`           // equal to Began if there was nothing to undo
	PodID  string    `json:"pod_id,omitempty"` // ID of the pod that was hit, if known
	Struck int       `json:"struck"`           // number of connections, processes or jobs that were hit; 0 if the fault had no effect
	Error  string    `json:"error,omitempty"`  // why the fault could not be injected
}

// Line is one report from a demo handler. The ledger server numbers all lines consecutively.
type Line struct {
	N        int64     `json:"n"`
	T        time.Time `json:"t"`
	Pod      string    `json:"pod"`
	PodID    string    `json:"pod_id"`
	Job      int64     `json:"job,string"`
	Kind     string    `json:"kind"`
	Subject  string    `json:"subject"`
	Lane     string    `json:"lane"`
	Pipeline int64     `json:"pipeline,string"`
	Attempt  int       `json:"attempt"`
	Fence    int64     `json:"fence"`
	Event    string    `json:"ev"` // start, tick, effect, ctx_done, end
	Cause    string    `json:"cause"`
	Refused  bool      `json:"refused,omitempty"` // the effect had a fence below the job's highest and was answered with 409
}

// The possible outcomes of a call, from the client's point of view.
const (
	OK      = "ok"      // the response reports success
	Refused = "refused" // the response states that nothing was done, and why
	Unknown = "unknown" // there is no response, or the response leaves the outcome open
)

// Call records one client command, from just before it is sent until its response arrives.
type Call struct {
	N        int             `json:"n"`
	Client   int             `json:"client"`
	Verb     string          `json:"verb"` // submit, cancel, stop, retry, nice, or a change to a lane, a limit per key (key_limit), the rate of a lane (rate), the queue state (queue_state) or a schedule
	Pod      string          `json:"pod"`  // the pod that received the call
	Began    time.Time       `json:"began"`
	Ended    time.Time       `json:"ended"`
	Outcome  string          `json:"outcome"`
	Status   int             `json:"status,omitempty"` // HTTP status
	Code     string          `json:"code,omitempty"`   // error code
	Job      int64           `json:"job,string,omitempty"`
	State    string          `json:"state,omitempty"` // job state in the response
	Key      string          `json:"key,omitempty"`   // idempotency key of a submission
	Unique   string          `json:"unique,omitempty"`
	Kind     string          `json:"kind,omitempty"`
	Subject  string          `json:"subject,omitempty"`
	Lane     string          `json:"lane,omitempty"`
	Priority *int            `json:"priority,omitempty"`
	Delay    time.Duration   `json:"delay,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"` // as sent
	Chain    []job.Step      `json:"chain,omitempty"`

	// These are the new values set by a call with the verb lane or queue_state; nil means unchanged.
	Enabled     *bool `json:"enabled,omitempty"`
	Paused      *bool `json:"paused,omitempty"`
	SlotsPerPod *int  `json:"slots_per_pod,omitempty"` // -1 means no limit
	Slots       *int  `json:"slots,omitempty"`         // slots across all pods

	// These are the new values set by a call with the verb rate: jobs per second, and how many of them may start at once after a pause.
	Rate  *int `json:"rate,omitempty"`
	Burst *int `json:"burst,omitempty"`

	Ordered bool `json:"ordered,omitempty"` // the submitted job keeps its subject between attempts

	JobKey string `json:"job_key,omitempty"` // key of a submitted job; for the verb key_limit, the key that Slots limits in Lane, or * for each key
}

// Keyed is a job with a key.
type Keyed struct {
	Job int64  `json:"job,string"`
	Key string `json:"key"`
}

// Sample is one observation of the running jobs, taken in a single snapshot after T.
type Sample struct {
	T       time.Time     `json:"t"` // just before the query was sent
	Took    time.Duration `json:"took"`
	Running []Running     `json:"running"`
	Pods    []PodNumbers  `json:"pods,omitempty"` // taken about once a second
	// Commit is the latest of the small commits that the sampler makes about four times a second. It is nil if there is no new commit, for
	// example because the last attempt failed.
	Commit *Commit `json:"commit,omitempty"`
	// Leases maps the pod IDs of open pods to the expiry times of their leases. It comes from the same snapshot.
	Leases map[string]time.Time `json:"leases,omitempty"`
}

// Commit is a transaction that writes almost nothing. Its duration shows how slow the machine, and above all its disk, currently is for any
// program.
type Commit struct {
	T    time.Time     `json:"t"` // when the transaction began
	Took time.Duration `json:"took"`
}

// Running is a job that was running when a sample was taken.
type Running struct {
	Job     int64  `json:"job,string"`
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	Lane    string `json:"lane"`
	PodID   string `json:"pod_id"`
	Fence   int64  `json:"fence"`
}

// PodNumbers contains a pod's resource usage at the time of a sample. Numbers that could not be read are -1.
type PodNumbers struct {
	Pod         string `json:"pod"`
	Goroutines  int    `json:"goroutines"`
	Files       int    `json:"files"` // open file descriptors
	RSS         int64  `json:"rss"`   // bytes
	Connections int    `json:"connections"`
	Stuck       int    `json:"stuck"` // handlers that ignore the cancellation of their context
	PID         int    `json:"pid"`   // the process that the numbers belong to; 0 if there was none
	// Starved is the total time that the process's threads have spent waiting for a CPU since the process started. It reflects the load
	// from other programs and is 0 if it cannot be determined.
	Starved time.Duration `json:"starved,omitempty"`
	// Sessions counts the connections by state: idle, idle in transaction, busy, or the event that they are waiting for inside the server,
	// such as Lock/transactionid.
	Sessions map[string]int `json:"sessions,omitempty"`
}

// Row is a row in the demo_rows table. A demo.tx job writes it in the transaction that ends the job.
type Row struct {
	Job   int64 `json:"job,string"`
	Fence int64 `json:"fence"`
	N     int   `json:"n"` // starts at 1
}

// Pipeline is a pipeline's status, as reported by Trapeze.
type Pipeline struct {
	ID     int64      `json:"id,string"` // ID of the pipeline's first job
	Status job.Status `json:"status"`
}

// Fire is the outcome of one schedule occurrence, read from the occurrence's row.
type Fire struct {
	Schedule  string    `json:"schedule"`
	FireAt    time.Time `json:"fire_at"`
	DecidedAt time.Time `json:"decided_at"`
	Outcome   string    `json:"outcome"`
	Manual    bool      `json:"manual"`
	Missed    int       `json:"missed"` // number of earlier occurrences that it counts as missed
	Job       *int64    `json:"job,string"`
}

// Schedule is one version of a schedule, recorded in the transaction that made the change.
type Schedule struct {
	N          int64      `json:"n"` // consecutive number of the change
	At         time.Time  `json:"at"`
	Schedule   string     `json:"schedule"`
	Expression string     `json:"expression"`
	Paused     bool       `json:"paused"`
	Anchor     time.Time  `json:"anchor"`    // all occurrences are after this time
	Undecided  *time.Time `json:"undecided"` // first occurrence that was unprocessed at the time of the change; nil if there was none
}

// Process records one run of a pod process, from start to exit. It is written after the process has exited.
type Process struct {
	Pod       string     `json:"pod"`             // name of the pod or the remote worker
	Via       []string   `json:"via,omitempty"`   // pods that a remote worker connects to; empty for a pod
	Slots     int        `json:"slots,omitempty"` // number of slots; 0 means the value from the settings
	PodIDs    []string   `json:"pod_ids"`         // pod IDs; a process takes a new one after losing its lease
	PID       int        `json:"pid"`
	Race      bool       `json:"race"`
	Started   time.Time  `json:"started"`
	Ready     *time.Time `json:"ready"`               // when the process reported that it was ready, or nil if it never did
	TermAt    *time.Time `json:"term_at,omitempty"`   // time of the first SIGTERM; nil if none was sent
	TermsGot  int        `json:"terms_got,omitempty"` // number of SIGTERMs sent
	Ended     time.Time  `json:"ended"`
	Exit      int        `json:"exit"`                 // exit code, or -1 after a signal
	Signal    string     `json:"signal,omitempty"`     // the signal that killed it
	Races     int        `json:"races,omitempty"`      // data races reported by the race detector
	Fired     []string   `json:"fired,omitempty"`      // failpoints that were triggered in the process
	StoppedBy string     `json:"stopped_by,omitempty"` // the signal or failpoint that stopped the process; empty if neither did
	Log       string     `json:"log"`                  // path of the log in the run's folder
}
