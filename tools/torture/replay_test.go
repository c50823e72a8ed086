//go:build long

package torture

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// Each plan in testdata once exposed a bug.
func TestRegressionPlans(t *testing.T) {
	is := is.New(t)
	files, err := filepath.Glob("testdata/*.jsonl")
	is.NoErr(err)
	is.True(len(files) > 0)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			is := is.New(t)
			plan, err := history.ReadLines[history.Act](file)
			is.NoErr(err)
			w, err := NewWorld(t.Context(), Options{Seed: 6, Duration: 25 * time.Second, Pods: 4, Dir: filepath.Join(t.TempDir(), "run")})
			is.NoErr(err)
			defer func() { is.NoErr(w.Close()) }()
			script := NewScript(w)
			script.Plan = plan
			is.NoErr(w.Torture(t.Context(), script))
			r, err := history.Read(w.Dir)
			is.NoErr(err)
			is.Equal(len(r.Faults) >= len(plan), true) // every planned fault was injected
			for _, f := range Judge(r).Findings {
				for _, accused := range f.Violations {
					t.Errorf("%s (%s): job %d: %s", f.Invariant, f.Claim, accused.Job, accused.What)
				}
			}
		})
	}
}
