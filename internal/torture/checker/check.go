package checker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// Finding is what came of one invariant.
type Finding struct {
	Invariant  string // its number in the list of invariants, "I3"
	Claim      string // what must hold, in one line
	Checked    int    // how many items could be judged
	Violations []Violation
}

// Violation is one item that breaks an invariant.
type Violation struct {
	Job  int64 // whose [Timeline] tells more; 0: of no job
	What string
}

// invariants are what is checked, in order.
var invariants = []struct {
	name, claim string
	check       func(*view, *Finding)
}{
	{"I1", "what was accepted is there, once, and ends or waits for a stated reason", nothingLost},
	{"I2", "a job ends once, and its end stays", endsOnce},
	{"I3", "no write of a former claim is accepted", fenceHolds},
	{"I4", "a job has one owner at a time, and a former one stops", ownersExclude},
	{"I5", "attempts and crashes stay within their limits", budgetsHold},
	{"I6", "a step that succeeds has exactly its next step, in the same commit", oneChild},
	{"I7", "histories are legal, numbered without a gap, and end where the job stands", historyLegal},
	{"I8", "one job of a kind and subject runs at a time", subjectsExclude},
	{"I9", "a command is told truthfully; a cancel reaches the handler, and wins", cancelReaches},
	{"I10", "what a dead pod ran is taken over in time", orphansRecovered},
	{"I10b", "what a remote worker has is its own until its lease ends, whatever becomes of its stream", workersKeepTheirs},
	{"I11", "a pod that is told to end hands over and goes", shutdownGraceful},
	{"I13", "a chain completes or visibly fails", chainsComplete},
	{"I13b", "a fan-out ends as its branches do, once they have, and a pipeline says what it is", joinsHold},
	{"I13c", "a failure or cancel that calls for an on-failure job has one, in the same commit, and no other end has", failuresFollowed},
	{"I14", "work goes on as long as somebody can do it", workGoesOn},
	{"I16", "no process runs more than its slots, no lane more than its limit, in a process and over all", slotsHold},
	{"I17", "who is more urgent, or waits longer, goes first", orderHolds},
	{"I18", "every step has its parent and its place in the pipeline", stepsHaveParents},
	{"I19", "a schedule fires when it says, once, and each fire has its job", schedulesFire},
	{"I21", "what was submitted is what is run and shown", roundTrip},
	{"I24", "a pod's resources are bounded and come back", resourcesBounded},
}

// Check judges a run: one finding an invariant, all of them, in order.
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

// Vacuous reports whether a finding proves nothing, because nothing was there to be judged.
func Vacuous(f Finding) bool { return f.Checked == 0 }

// judge counts an item and accuses it unless it holds. It returns holds.
func (f *Finding) judge(holds bool, job int64, format string, args ...any) bool {
	f.Checked++
	if !holds {
		f.accuse(job, format, args...)
	}
	return holds
}

// accuse adds a violation of an item that is counted elsewhere.
func (f *Finding) accuse(job int64, format string, args ...any) {
	f.Violations = append(f.Violations, Violation{Job: job, What: fmt.Sprintf(format, args...)})
}

// NotYet says which invariants are not judged, and why.
var NotYet = []struct{ Invariant, Why string }{
	{"I12", "no demo kind has a timeout, so no handler has a deadline to keep"},
	{"I15", "the records hold no schema: pods refuse to start on one that does not fit, and a run needs them to start"},
	{"I20", "streams do not exist"},
	{"I22", "permissions do not exist"},
	{"I23", "arguments are not masked by anything yet, so there is no secret to keep"},
}
