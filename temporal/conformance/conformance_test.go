package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// testCase tests one promise that every engine keeps.
type testCase struct {
	name string
	run  func(w *world)
	// differs describes how Temporal differs, as a row of the table in docs/temporal.md; it is empty if there is no difference. The case
	// tests the difference.
	differs string
}

var (
	cases = slices.Concat(ofHandlers, drains)
	// ofHandlers are the cases that also run with the handlers in a worker without a database. The other cases concern the workers in pods.
	ofHandlers = slices.Concat(ends, retries, orders, pipelines, fanOuts, failures, commands, submissions, observations)
)

var engines = []engine{{name: job.EnginePostgreSQL}, {name: temporal.Name, open: openTemporal}, {name: temporal.Name, open: openTemporal, workers: true}}

func TestEachEngineKeepsThePromises(t *testing.T) {
	for _, e := range engines {
		name, list := e.name, cases
		if e.workers {
			name, list = e.name+" with workers", ofHandlers
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range list {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, e)
					c.run(w)
					w.check()
				})
			}
		})
	}
}

func TestTheGuideListsEachDifference(t *testing.T) {
	guide, err := os.ReadFile("../../docs/temporal.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range cases {
		if names[c.name] {
			t.Errorf("two cases are named %q", c.name)
		}
		names[c.name] = true
		if !strings.Contains(string(guide), c.differs) {
			t.Errorf("docs/temporal.md does not list the difference %q of the case %q", c.differs, c.name)
		}
	}
}
