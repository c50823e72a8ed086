//go:build long

package torture

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestShortTortureRun(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, err := NewWorld(t.Context(), Options{Seed: 2, Duration: 10 * time.Second, Pods: 2, Dir: filepath.Join(t.TempDir(), "2")})
	is.NoErr(err)
	defer func() { is.NoErr(w.Close()) }()
	script := NewScript(w)
	script.Plan = []history.Act{
		{No: 1, At: 2 * time.Second, Fault: "F1", Verb: "kill", Pod: "pod2"},
		{No: 2, At: 3 * time.Second, Fault: "F71", Verb: "worker_moves", Pod: "worker1", For: time.Second},
		{No: 3, At: 6 * time.Second, Fault: "F23", Verb: "reset", Pod: "pod1", For: time.Second, Number: 2},
	}
	script.AtRest = nil
	is.NoErr(w.Torture(t.Context(), script))

	r, err := history.Read(w.Dir)
	is.NoErr(err)
	is.True(r.Settings.Quiescent) // nothing is left to do
	is.Equal(len(r.Plan), 3)
	is.Equal(len(r.Faults), 3)
	is.True(len(r.Pods) >= 3)    // two pods, at least one of them restarted
	is.True(len(r.Calls) > 100)  // clients submitted, cancelled and stopped jobs
	is.True(len(r.Jobs) > 100)   // the submissions resulted in jobs
	is.True(len(r.Events) > 300) // jobs were created, claimed and finished
	is.True(len(r.Ledger) > 200) // handlers reported their work
	is.True(len(r.Samples) > 50) // about half of the expected number
	for i, line := range r.Ledger {
		is.Equal(line.N, int64(i+1)) // the lines are numbered without gaps
	}
	for _, p := range r.Pods {
		if p.Ready != nil {
			is.Equal(len(p.PodIDs) >= 1, true) // a ready process has announced its pod ID
		}
	}

	v := Judge(r)
	for _, f := range v.Findings {
		for _, accused := range f.Violations {
			t.Errorf("%s (%s): job %d: %s", f.Invariant, f.Claim, accused.Job, accused.What)
		}
	}
	is.True(v.Counts.Kills >= 1)
	is.True(v.Counts.Remote > 20)   // remote workers took part
	is.True(v.Counts.Crossings > 5) // chains moved between pods and remote workers
	is.True(v.Counts.Jobs == len(r.Jobs))
}
