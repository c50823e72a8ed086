package torture

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestVerdictUnexpectedProcessExit(t *testing.T) {
	t.Parallel()
	quiet := time.Now()
	ready, late := quiet.Add(-time.Minute), quiet.Add(time.Second)
	ledger := []history.Line{
		{Job: 1, Fence: 1, Kind: "demo.exit", PodID: "killer", Event: "start"},
		{Job: 2, Fence: 1, Kind: "demo.panic", PodID: "panicked", Event: "start"},
		{Job: 2, Fence: 1, Kind: "demo.panic", PodID: "panicked", Event: "end"},
		{Job: 3, Fence: 1, Kind: "demo.exit", PodID: "not logged yet", Pod: "hasty", T: ready, Event: "start"},
	}
	for name, c := range map[string]struct {
		p       history.Process
		accused bool
	}{
		"killed by us":             {p: history.Process{Ready: &ready, StoppedBy: byASignal, Signal: "killed", Exit: -1}},
		"killed by a failpoint":    {p: history.Process{Ready: &ready, StoppedBy: byAFailpoint, Exit: 7}},
		"ended by its job":         {p: history.Process{Ready: &ready, Exit: 3, PodIDs: []string{"killer"}}},
		"its job had ended before": {p: history.Process{Ready: &ready, Exit: 2, PodIDs: []string{"panicked"}}, accused: true},
		"ended by the first job of a pod ID": {p: history.Process{Ready: &ready, Exit: 3, Pod: "hasty", PodIDs: []string{"its first"},
			Started: ready.Add(-time.Second), Ended: ready.Add(time.Second)}},
		"its pod's former process had the job": {p: history.Process{Ready: &ready, Exit: 3, Pod: "hasty", Started: ready.Add(time.Second),
			Ended: late}, accused: true},
		"found no database":         {p: history.Process{Exit: unavailable}},
		"failed to start otherwise": {p: history.Process{Exit: 1}, accused: true},
		"ended as if all were well": {p: history.Process{Ready: &ready}, accused: true},
		"left in the quiet tail":    {p: history.Process{Ready: &ready, StoppedBy: byASignal, TermAt: &late}},
		"had to be killed then":     {p: history.Process{Ready: &ready, StoppedBy: byASignal, TermAt: &late, Signal: "killed", Exit: -1}, accused: true},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			f := noSuicide(&history.Run{Settings: history.Settings{QuietFrom: quiet}, Pods: []history.Process{c.p}, Ledger: ledger})
			is.Equal(f.Checked, 1)
			is.Equal(len(f.Violations) == 1, c.accused)
		})
	}
}

func TestVerdictAllWritesLost(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		history.SettingsFile: "{}", history.FaultsFile: "", history.LedgerFile: "", history.CallsFile: "", history.SamplesFile: "", history.PodsFile: "",
		history.EventsFile: "", history.JobsFile: `{"id":"1","kind":"demo.tx","state":"succeeded","args":{"rows":2}}`,
	} {
		is.NoErr(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	lost := func() (n int) {
		r, err := history.Read(dir)
		is.NoErr(err)
		for _, f := range checker.Check(r) {
			if f.Invariant == "I3" {
				n += len(f.Violations)
			}
		}
		return n
	}
	is.Equal(lost(), 0) // the rows were not exported
	is.NoErr(os.WriteFile(filepath.Join(dir, history.RowsFile), nil, 0o600))
	is.Equal(lost(), 1) // the rows were exported, but there were none
}

func TestVerdictDataRace(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	is.Equal(len(noRaces(&history.Run{Pods: []history.Process{{}, {}}}).Violations), 0)
	is.Equal(len(noRaces(&history.Run{Pods: []history.Process{{}, {Races: 2}}}).Violations), 1)
}

func TestVerdictUncheckedInvariant(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	empty := checker.Finding{Invariant: "I1"}
	broken := checker.Finding{Invariant: "I2", Checked: 1, Violations: []checker.Violation{{What: "wrong"}}}
	v := Verdict{Findings: []checker.Finding{empty, broken, {Invariant: "I3", Checked: 1}}}
	is.Equal(v.Broken(), []checker.Finding{empty, broken})
	v.Narrowed = true
	is.Equal(v.Broken(), []checker.Finding{broken})
}

func TestVerdictFleetUnavailableAtRest(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	question := history.Act{No: -1, Fault: "F34", Verb: lostWakeUp}
	last := func(f history.Fault) checker.Finding {
		findings := Judge(&history.Run{Faults: []history.Fault{f}}).Findings
		return findings[len(findings)-3]
	}
	is.Equal(last(history.Fault{Act: question, Struck: 3}).Checked, 1)
	is.Equal(last(history.Fault{Act: question, Error: "not every pod is listening"}).Checked, 0)
	is.Equal(last(history.Fault{Act: question}).Checked, 0)
}
