package main

import (
	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestTheDemoShowsAHandOffAndATakeoverAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tmp := t.TempDir()
	got := trapeze(t, []string{"TMPDIR=" + tmp}, "demo", "--json")
	if got.code == exit.CodeUnavailable && os.Getenv("DATABASE_URL") != "" && os.Getenv("PGBIN") == "" {
		t.Skip("DATABASE_URL is the only PostgreSQL here")
	}
	checkDemo(t, got)
	left, err := filepath.Glob(filepath.Join(tmp, "trapeze-pg-*"))
	is.NoErr(err)
	is.Equal(len(left), 0) // the server's directory was removed
}

// checkDemo checks the report of a demo in which the pod was killed halfway.
func checkDemo(t *testing.T, got said) {
	t.Helper()
	is := is.New(t)
	is.Equal(got.err, "")
	is.Equal(got.code, exit.CodeOK)
	var report struct {
		Rows, Units, Warnings int64
		Total                 json.Number `json:"total_kg_co2e"`
		Takeover              float64     `json:"takeover_seconds"`
		Steps                 []struct {
			Kind      string
			MS        float64
			HandoffMS float64 `json:"handoff_ms"`
		}
	}
	is.NoErr(json.Unmarshal([]byte(got.out), &report)) // the output is a single line of JSON
	is.Equal(report.Rows, int64(20000))
	is.Equal(report.Units, int64(220))
	is.Equal(report.Total.String(), "4645337.308939008") // package handlers computes this total from the files using rational numbers
	is.Equal(report.Warnings, int64(0))
	is.True(report.Takeover > 2 && report.Takeover < 60) // the lease of 8 s, minus the age of the last heartbeat
	is.Equal(len(report.Steps), 4)
	for i, s := range report.Steps {
		is.Equal(s.Kind, []string{"csv_ingest", "factor_sync", "emission_recalc", "unit_totals"}[i])
		is.True(s.MS > 0)
		is.True(s.HandoffMS > 0 && s.HandoffMS < 5000) // handed off directly, not found by a poll
	}
}

func TestADemoNamesTheAirportsThatCouldNotBeRecalculated(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "flights.csv")
	is.NoErr(os.WriteFile(path, []byte("flown_at,origin,destination,distance_miles\n"+
		"2024-01-01T00:00:00Z,ATL,JFK,100\n2024-01-02T00:00:00Z,BOS,LAX,3218688\n"), 0o600)) // the distance from BOS is in metres instead of miles
	got := trapeze(t, []string{"DATABASE_URL=" + pgtest.EmptyURL(t)}, "demo", "--file", path)
	is.Equal(got.err, "")
	is.Equal(got.code, exit.CodeOK)
	for _, line := range []string{
		"Total: 41.038272 kg CO2e from 1 flights",
		"The pipeline is partial: 1 airports could not be recalculated and are left out.",
		"  BOS  a distance of more than 20038 km, half way round the Earth, in 1 of 1 flights: are they in miles?",
		" pipeline 1", // names the pipeline to inspect
	} {
		if !strings.Contains(got.out, line) {
			t.Errorf("the demo does not print %q:\n%s", line, got.out)
		}
	}
}

func TestADemoOfAFileThatIsNotThereFailsBeforeAnythingIsStarted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	got := trapeze(t, []string{"TMPDIR=" + t.TempDir()}, "demo", "--file", "/nowhere/flights.csv")
	is.Equal(got.code, exit.CodeUsage)
	is.Equal(got.out, "") // nothing was started
}
