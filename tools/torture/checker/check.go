package checker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// Finding is the result of checking one invariant.
type Finding struct {
	Invariant  string // the invariant's number, such as "I3"
	Claim      string // the property that must hold, in one line
	Checked    int    // number of items that could be checked
	Violations []Violation
}

// Violation is one item that breaks an invariant.
type Violation struct {
	Job  int64 // the job whose [Timeline] shows the details, or 0 if there is none
	What string
}

// invariants lists the checks in order.
var invariants = []struct {
	name, claim string
	check       func(*view, *Finding)
}{
	{"I1", "every accepted job exists once, and ends or waits for a stated reason", nothingLost},
	{"I2", "a job ends once and stays ended", endsOnce},
	{"I3", "no write by an earlier claim is accepted", fenceHolds},
	{"I4", "a job has one owner at a time, and the previous owner stops", ownersExclude},
	{"I5", "attempts and crashes stay within their limits", budgetsHold},
	{"I6", "a step that succeeds has exactly its next step, in the same commit", oneNextStep},
	{"I7", "histories are valid, numbered without gaps, and end in the job's state", historyLegal},
	{"I8", "one job of a kind and subject runs at a time", subjectsExclude},
	{"I8b", "no more jobs of a key run at a time than its limits in the lane and kind allow", keysHold},
	{"I8c", "an ordered job keeps its subject from its first claim to its end", orderedKeep},
	{"I8d", "no lane starts more jobs in any period than its rates and bursts allow", ratesHold},
	{"I9", "responses to commands are true; a cancel reaches the handler and takes effect", cancelReaches},
	{"I10", "the jobs of a dead pod are taken over in time", jobsRecovered},
	{"I10b", "a remote worker keeps its jobs until its lease expires, whatever happens to its stream", workersKeepTheirs},
	{"I11", "a pod that is told to shut down hands back its jobs and exits", shutdownGraceful},
	{"I13", "a chain completes or visibly fails", chainsComplete},
	{"I13b", "a fan-out's outcome follows from its branches, and a pipeline's status from its jobs", joinsHold},
	{"I13c", "a failure or cancel with an on-failure step creates its job in the same commit; no other end does", failuresFollowed},
	{"I14", "work continues as long as a pod can do it", workGoesOn},
	{"I16", "no process exceeds its slots, and no lane its limits per process and over all processes", slotsHold},
	{"I17", "the job that is more urgent, or has waited longer, goes first", orderHolds},
	{"I18", "every step has its parent and its position in the pipeline", stepsHaveParents},
	{"I19", "a schedule fires once at each time of its expression, and each fire has its job", schedulesFire},
	{"I21", "a job is run and shown as it was submitted", roundTrip},
	{"I24", "a pod's resource usage is bounded and returns to normal", resourcesBounded},
}

// Check judges a run and returns one finding per invariant, in order.
func Check(run *history.Run) []Finding {
	v := look(run)
	findings := make([]Finding, len(invariants))
	for i, one := range invariants {
		findings[i] = Finding{Invariant: one.name, Claim: one.claim}
		one.check(v, &findings[i])
		slices.SortStableFunc(findings[i].Violations, func(a, b Violation) int {
			return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.What, b.What))
		})
	}
	return findings
}

// Vacuous reports whether a finding proves nothing because there was nothing to check.
func Vacuous(f Finding) bool { return f.Checked == 0 }

// judge counts an item as checked and records a violation unless holds is true. It returns holds.
func (f *Finding) judge(holds bool, job int64, format string, args ...any) bool {
	f.Checked++
	if !holds {
		f.accuse(job, format, args...)
	}
	return holds
}

// accuse records a violation for an item that is counted elsewhere.
func (f *Finding) accuse(job int64, format string, args ...any) {
	f.Violations = append(f.Violations, Violation{Job: job, What: fmt.Sprintf(format, args...)})
}

// NotYet lists the invariants that are not checked, with the reasons.
var NotYet = []struct{ Invariant, Why string }{
	{"I12", "no demo kind has a timeout, so no handler has a deadline"},
	{"I15", "the records do not include the schema; pods refuse to start on an incompatible one, and a run needs them to start"},
	{"I20", "a run does not watch streams"},
	{"I22", "all clients of a run have all permissions"},
	{"I23", "no demo kind has secret arguments"},
}
