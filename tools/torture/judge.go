package torture

import (
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// Verdict is the result of judging a run's records.
type Verdict struct {
	Narrowed bool
	Counts   Counts
	Findings []checker.Finding // one per invariant
}

// Counts summarizes the faults that the fleet suffered, the work that it did, and how often its safeguards were needed.
type Counts struct {
	Faults      int `json:"faults"`
	Missed      int `json:"missed"` // faults that had no effect
	Failed      int `json:"failed"` // faults that could not be injected
	Kills       int `json:"kills"`
	Stops       int `json:"stops"` // pods, remote workers and servers that were frozen
	Cuts        int `json:"cuts"`  // connections and replies that were cut
	Restarts    int `json:"restarts"`
	Jobs        int `json:"jobs"`
	Chains      int `json:"chains"`
	Takeovers   int `json:"takeovers"` // jobs that another pod took over
	Remote      int `json:"remote"`    // claims for remote workers
	Crossings   int `json:"crossings"` // chain steps that moved from a pod to a remote worker or back
	Stale       int `json:"stale_writes_refused"`
	Occurrences int `json:"occurrences"` // occurrences that schedules fired
	Retries     int `json:"retries"`     // retries by operators
	Niced       int `json:"niced"`       // priority changes

	// Starved is the average number of seconds per second that a pod's threads waited for a CPU. It measures the load from other programs.
	// On an otherwise idle machine, it is a few hundredths.
	Starved float64 `json:"starved"`
}

// Judge judges a run's records. It checks the system's invariants, two invariants of its processes, and whether the tests of the idle fleet
// were performed.
func Judge(r *history.Run) Verdict {
	return Verdict{Narrowed: r.Settings.Narrowed, Counts: count(r), Findings: append(checker.Check(r), noRaces(r), noSuicide(r),
		asked(r, "wakes", lostWakeUp, "a fleet at rest was given jobs that no pod was notified of"),
		asked(r, "cancels", lateCancel, "jobs were cancelled on a fleet at rest at the last moment"), asked(r, "replies", lostReply, "a fleet at rest lost replies"))}
}

// asked counts how often a test of the idle fleet was performed. The invariants judge the test's results, but a run in which the test could
// not be performed proves less.
func asked(r *history.Run, name, verb, claim string) checker.Finding {
	f := checker.Finding{Invariant: name, Claim: claim}
	for _, one := range r.Faults {
		if one.Verb == verb && one.Error == "" && one.Struck > 0 {
			f.Checked++
		}
	}
	return f
}

// Broken returns the findings that make the run count as broken: those with violations and, unless the run was narrowed to a few faults,
// those for which there was nothing to check.
func (v Verdict) Broken() (list []checker.Finding) {
	for _, f := range v.Findings {
		if len(f.Violations) > 0 || !v.Narrowed && checker.Vacuous(f) {
			list = append(list, f)
		}
	}
	return list
}

func count(r *history.Run) Counts {
	c := Counts{Faults: len(r.Faults), Jobs: len(r.Jobs), Occurrences: len(r.Occurrences), Starved: starvation(r)}
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

// remote counts the claims for remote workers, and how often a chain moved from a pod to a remote worker or back.
func remote(r *history.Run) (claims, crossings int) {
	far, on := map[string]bool{}, map[int64]bool{}
	for _, p := range r.Pods {
		for _, podID := range p.PodIDs {
			far[podID] = len(p.Via) > 0
		}
	}
	claimed := map[int64]bool{}
	for _, e := range r.Events {
		if e.Event == "job.claimed" && e.Job != nil && e.PodID != nil {
			claimed[*e.Job], on[*e.Job] = true, far[*e.PodID]
			if far[*e.PodID] {
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

// starvation returns the average time per second that pods spent waiting for a CPU.
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

// noRaces checks for reports from the race detector. Processes without the detector cannot report races but count as checked all the same.
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

// noSuicide checks that no process exited on its own and that no process had to be killed because it ignored the final SIGTERM.
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
			// A process that cannot reach the database reports the problem and exits.
		default:
			accuse("exited without being told to")
		}
	}
	return f
}

// unavailable is the exit code of a process that cannot reach the database.
const unavailable = 3

// deadly lists the kinds of jobs that may kill the process that runs them.
var deadly = []string{"demo.exit", "demo.panic", "demo.hog"}

// killedByAJob reports whether a process was running a job that may have killed it. A process that takes a new pod ID after losing its
// lease may exit before it has logged the ID, so all of the pod's ledger lines between the process's start and end count.
func killedByAJob(r *history.Run, p history.Process) bool {
	open := map[string]bool{}
	for _, l := range r.Ledger {
		its := slices.Contains(p.PodIDs, l.PodID) || l.Pod == p.Pod && l.T.After(p.Started) && !p.Ended.IsZero() && !l.T.After(p.Ended)
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
