package torture

import (
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/checker"
	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// Verdict is what a run's records say.
type Verdict struct {
	Narrowed bool
	Counts   Counts
	Findings []checker.Finding // one an invariant
}

// Counts are how much was done to the fleet, how much it did, and how often its guards were needed.
type Counts struct {
	Faults    int `json:"faults"`
	Missed    int `json:"missed"` // faults that hit nothing
	Failed    int `json:"failed"` // faults that could not be done
	Kills     int `json:"kills"`
	Stops     int `json:"stops"` // freezes of a pod, a remote worker or the server
	Cuts      int `json:"cuts"`  // connections and replies
	Restarts  int `json:"restarts"`
	Jobs      int `json:"jobs"`
	Chains    int `json:"chains"`
	Takeovers int `json:"takeovers"` // jobs that another pod took over
	Remote    int `json:"remote"`    // claims for remote workers
	Crossings int `json:"crossings"` // steps of chains that went from a pod to a remote worker, or back
	Stale     int `json:"stale_writes_refused"`
	Fires     int `json:"fires"`   // of schedules
	Retries   int `json:"retries"` // by operators
	Niced     int `json:"niced"`   // jobs that got another priority

	// Starved is how long a pod's threads waited for a processor, per second, on average: what the machine did to them
	// beside the torture. On a machine that is the run's own it is a few hundredths.
	Starved float64 `json:"starved"`
}

// Judge judges a run's records: the invariants of the system, two of the processes themselves, and whether the fleet at rest was asked its questions.
func Judge(r *history.Run) Verdict {
	return Verdict{Narrowed: r.Settings.Narrowed, Counts: count(r), Findings: append(checker.Check(r), noRaces(r), noSuicide(r),
		asked(r, "wakes", lostWakeUp, "a fleet at rest was given jobs that no pod was notified of"),
		asked(r, "cancels", lateCancel, "jobs were cancelled on a fleet at rest at the last moment"), asked(r, "replies", lostReply, "a fleet at rest lost replies"))}
}

// asked counts how often a fleet at rest was asked a question. The invariants judge the answers; a run that could not ask has proved less.
func asked(r *history.Run, name, verb, claim string) checker.Finding {
	f := checker.Finding{Invariant: name, Claim: claim}
	for _, one := range r.Faults {
		if one.Verb == verb && one.Error == "" && one.Struck > 0 {
			f.Checked++
		}
	}
	return f
}

// Broken returns the findings that break the verdict: those with violations, and, unless the run was narrowed to a few
// faults, those that checked nothing.
func (v Verdict) Broken() (list []checker.Finding) {
	for _, f := range v.Findings {
		if len(f.Violations) > 0 || !v.Narrowed && checker.Vacuous(f) {
			list = append(list, f)
		}
	}
	return list
}

func count(r *history.Run) Counts {
	c := Counts{Faults: len(r.Faults), Jobs: len(r.Jobs), Fires: len(r.Fires), Starved: starvation(r)}
	for _, f := range r.Faults {
		switch {
		case f.Error != "":
			c.Failed++
			continue
		case f.Struck == 0:
			c.Missed++
			continue
		}
		switch f.Fault {
		case "F2", "F3", "F4", "F22", "F70":
			c.Stops++
		case "F21", "F23", "F24", "F25", "F69":
			c.Cuts += f.Struck
		case "F19", "F20":
			c.Restarts++
		}
	}
	for _, p := range r.Pods {
		if p.Signal == "killed" {
			c.Kills++
		}
	}
	chains := map[int64]bool{}
	for _, j := range r.Jobs {
		if j.Step > 0 {
			chains[j.PipelineID] = true
		}
	}
	c.Chains = len(chains)
	c.Remote, c.Crossings = remote(r)
	for _, e := range r.Events {
		switch e.Event {
		case "job.recovered":
			c.Takeovers++
		case "job.stale_result":
			c.Stale++
		case "job.operator_retry":
			c.Retries++
		case "job.niced":
			c.Niced++
		}
	}
	for _, l := range r.Ledger {
		if l.Refused {
			c.Stale++
		}
	}
	return c
}

// remote counts what remote workers were given, and how often a chain went from a pod to one or back.
func remote(r *history.Run) (claims, crossings int) {
	far, on := map[string]bool{}, map[int64]bool{}
	for _, p := range r.Pods {
		for _, boot := range p.Boots {
			far[boot] = len(p.Via) > 0
		}
	}
	claimed := map[int64]bool{}
	for _, e := range r.Events {
		if e.Event == "job.claimed" && e.Job != nil && e.Boot != nil {
			claimed[*e.Job], on[*e.Job] = true, far[*e.Boot]
			if far[*e.Boot] {
				claims++
			}
		}
	}
	for _, j := range r.Jobs {
		if j.ParentID != nil && claimed[j.ID] && claimed[*j.ParentID] && on[j.ID] != on[*j.ParentID] {
			crossings++
		}
	}
	return claims, crossings
}

// starvation is the average of what pods waited for a processor, per second.
func starvation(r *history.Run) float64 {
	type look struct {
		at      time.Time
		pid     int
		starved time.Duration
	}
	last := map[string]look{}
	var waited, total time.Duration
	for _, s := range r.Samples {
		for _, n := range s.Pods {
			before := last[n.Pod]
			last[n.Pod] = look{s.T, n.PID, n.Starved}
			if n.PID != 0 && n.PID == before.pid && n.Starved >= before.starved {
				waited += n.Starved - before.starved
				total += s.T.Sub(before.at)
			}
		}
	}
	if total == 0 {
		return 0
	}
	return waited.Seconds() / total.Seconds()
}

// noRaces checks what the race detector had to say. In a run without it there is nothing to check, which is no vacuity.
func noRaces(r *history.Run) checker.Finding {
	f := checker.Finding{Invariant: "races", Claim: "no process has a data race"}
	for _, p := range r.Pods {
		f.Checked++
		if p.Races > 0 {
			f.Violations = append(f.Violations, checker.Violation{What: fmt.Sprintf("%d data races in %s", p.Races, p.Log)})
		}
	}
	return f
}

// noSuicide checks that no process ended which nobody told to, and that each that was told to in the quiet tail did.
func noSuicide(r *history.Run) checker.Finding {
	f := checker.Finding{Invariant: "exits", Claim: "no process exits unless it is told to"}
	for _, p := range r.Pods {
		f.Checked++
		how := fmt.Sprintf("exit code %d", p.Exit)
		if p.Signal != "" {
			how = "signal " + p.Signal
		}
		accuse := func(what string) {
			f.Violations = append(f.Violations, checker.Violation{What: fmt.Sprintf("%s, process %d, %s: %s; see %s", p.Pod, p.PID, what, how, p.Log)})
		}
		switch {
		case p.TermAt != nil && p.TermAt.After(r.Settings.QuietFrom):
			if p.Signal != "" {
				accuse("had to be killed because it ignored SIGTERM")
			}
		case p.StoppedBy != "" || killedByAJob(r, p):
		case p.Ready == nil && p.Exit == unavailable:
			// It found no database, which a process says and ends.
		default:
			accuse("exited without being told to")
		}
	}
	return f
}

// unavailable is the exit code of a program that finds no database.
const unavailable = 3

// deadly are the kinds that may end their process.
var deadly = []string{"demo.exit", "demo.panic", "demo.hog"}

// killedByAJob reports whether a process was in the middle of a job that may have ended it. A process that takes a new boot id after it
// lost its lease may end before it has logged that id, so the lines of its pod count from its start to its end.
func killedByAJob(r *history.Run, p history.Process) bool {
	open := map[string]bool{}
	for _, l := range r.Ledger {
		its := slices.Contains(p.Boots, l.Boot) || l.Pod == p.Pod && l.T.After(p.Started) && !p.Ended.IsZero() && !l.T.After(p.Ended)
		if its && slices.Contains(deadly, l.Kind) {
			open[fmt.Sprint(l.Job, "/", l.Fence)] = l.Event != "end"
		}
	}
	for _, is := range open {
		if is {
			return true
		}
	}
	return false
}
