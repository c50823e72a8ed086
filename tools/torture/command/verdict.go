package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/trapeze-run/trapeze/tools/torture"
	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// mostShown is the number of violations printed per invariant; the JSON document has all of them.
const mostShown = 5

// busyFrom is the number of seconds per second that a pod's threads must spend waiting for a CPU before the machine counts as busy.
const busyFrom = 0.3

// document is the verdict as printed in JSON.
type document struct {
	Green      bool           `json:"green"`
	Seed       uint64         `json:"seed"`
	Binary     string         `json:"binary"`
	PostgreSQL string         `json:"postgresql"`
	Race       bool           `json:"race"`
	Mutant     string         `json:"mutant,omitempty"`
	Dir        string         `json:"dir"`
	Seconds    float64        `json:"seconds"` // length of the fault phase
	Quiescent  bool           `json:"quiescent"`
	Counts     torture.Counts `json:"counts"`
	Invariants []invariant    `json:"invariants"`
	Timeline   []string       `json:"timeline,omitempty"` // timeline of the first job with a violation
}

type invariant struct {
	Invariant  string      `json:"invariant"`
	Claim      string      `json:"claim"`
	Checked    int         `json:"checked"`
	Verdict    string      `json:"verdict"` // ok, broken, or empty if there was nothing to check
	Violations []violation `json:"violations,omitempty"`
}

type violation struct {
	Job  int64  `json:"job,string,omitempty"`
	What string `json:"what"`
}

// judge judges the records in a folder and prints the verdict.
func judge(dir string, c command, stdout, stderr io.Writer) int {
	r, err := history.Read(dir)
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return exitMachine
	}
	v := torture.Judge(r)
	d := describe(dir, r, v)
	if c.asJSON {
		if code := printJSON(stdout, d); code != exitGreen {
			return code
		}
	} else {
		print(stdout, r, d)
		if !d.Green {
			fmt.Fprintln(stdout, "again:", replayCommand(r, dir, c.o.Binary))
		}
	}
	if !d.Green {
		return exitBroken
	}
	return exitGreen
}

func describe(dir string, r *history.Run, v torture.Verdict) document {
	s := r.Settings
	d := document{
		Green: len(v.Broken()) == 0, Seed: s.Seed, Binary: s.Binary, PostgreSQL: s.PostgreSQL, Race: s.Race, Mutant: s.Mutant,
		Dir: dir, Seconds: s.QuietFrom.Sub(s.Began).Seconds(), Quiescent: s.Quiescent, Counts: v.Counts,
	}
	var offender int64
	for _, f := range v.Findings {
		one := invariant{Invariant: f.Invariant, Claim: f.Claim, Checked: f.Checked, Verdict: "ok"}
		switch {
		case len(f.Violations) > 0:
			one.Verdict = "broken"
		case checker.Vacuous(f):
			one.Verdict = "empty"
		}
		for _, accused := range f.Violations {
			one.Violations = append(one.Violations, violation{Job: accused.Job, What: accused.What})
			if offender == 0 {
				offender = accused.Job
			}
		}
		d.Invariants = append(d.Invariants, one)
	}
	if offender != 0 {
		d.Timeline = strings.Split(strings.TrimRight(checker.Timeline(r, offender), "\n"), "\n")
	}
	return d
}

// print prints the verdict as text.
func print(to io.Writer, r *history.Run, d document) {
	c := d.Counts
	fmt.Fprintf(to, "%d faults in %.0f s (%d hit nothing, %d could not be done): %d kills, %d stops, %d cuts, %d restarts\n",
		c.Faults, d.Seconds, c.Missed, c.Failed, c.Kills, c.Stops, c.Cuts, c.Restarts)
	fmt.Fprintf(to, "%d jobs, %d chains, %d takeovers, %d stale writes refused\n", c.Jobs, c.Chains, c.Takeovers, c.Stale)
	fmt.Fprintf(to, "%d claims for remote workers, %d steps from a pod to one or back\n", c.Remote, c.Crossings)
	fmt.Fprintf(to, "%d occurrences of schedules, %d retries by operators, %d other priorities\n\n", c.Occurrences, c.Retries, c.Niced)
	bad := 0
	for _, one := range d.Invariants {
		fmt.Fprintf(to, "%-6s %-6s %7d  %s\n", one.Invariant, strings.ToUpper(one.Verdict), one.Checked, one.Claim)
		for i, v := range one.Violations {
			if i == mostShown {
				fmt.Fprintf(to, "         … and %d more\n", len(one.Violations)-i)
				break
			}
			fmt.Fprintf(to, "         %s%s\n", ofJob(v.Job), v.What)
		}
		if one.Verdict != "ok" {
			bad++
		}
	}
	if len(d.Timeline) > 0 {
		fmt.Fprintf(to, "\nThe first offender:\n")
		for _, line := range d.Timeline {
			fmt.Fprintln(to, "  "+line)
		}
	}
	if c.Starved > busyFrom {
		fmt.Fprintf(to, "\nThe machine was busy: a pod's threads waited %.2f s per second for a processor. Checks that depend on timing were skipped\n"+
			"for those periods.\n", c.Starved)
	}
	if !d.Quiescent {
		fmt.Fprintf(to, "\nThe quiet tail ended because its time was up: something was left to do.\n")
	}
	fmt.Fprintf(to, "\n%s\n", who(r.Settings))
	if d.Green {
		fmt.Fprintf(to, "green; the records are in %s\n", d.Dir)
		return
	}
	fmt.Fprintf(to, "NOT GREEN: %d of %d invariants are broken or were not checked; the records are in %s\n", bad, len(d.Invariants), d.Dir)
}

// replayCommand returns the command that repeats a run with the same seed, pods and faults. If binary is empty, the command rebuilds the
// program.
func replayCommand(r *history.Run, dir, binary string) string {
	s, pods, race := r.Settings, map[string]bool{}, "no"
	for _, p := range r.Pods {
		if len(p.Via) == 0 {
			pods[p.Pod] = true
		}
	}
	if s.Race {
		race = "yes"
	}
	command := fmt.Sprintf("make torture ARGS='-seed %d -pods %d -race %s", s.Seed, len(pods), race)
	if s.Mutant != "" {
		command += " -mutant " + s.Mutant
	}
	if binary != "" {
		command += " -binary " + binary
	}
	return command + " -replay " + filepath.Join(dir, history.PlanFile) + "'"
}

func ofJob(id int64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("job %d: ", id)
}

func printJSON(to io.Writer, one any) int {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if e.Encode(one) != nil {
		return exitMachine
	}
	return exitGreen
}
