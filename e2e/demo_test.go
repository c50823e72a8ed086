package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
)

func TestDemoHandOffTakeoverCleanup(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tmp, err := os.MkdirTemp("", "demo-")
	is.NoErr(err)
	t.Cleanup(func() { is.NoErr(os.RemoveAll(tmp)) })
	is.NoErr(os.Chmod(tmp, 0o711)) // otherwise, if root runs the test, the server's user cannot use it, and the server uses /tmp instead
	got := trapeze(t, []string{"TMPDIR=" + tmp}, "demo", "--json")
	if got.code == cli.CodeUnavailable && os.Getenv("DATABASE_URL") != "" && os.Getenv("PGBIN") == "" {
		t.Skip("DATABASE_URL is the only PostgreSQL here")
	}
	checkDemo(t, got)
	left, err := filepath.Glob(filepath.Join(tmp, "trapeze-pg-*"))
	is.NoErr(err)
	is.Equal(len(left), 0) // the server's directory was removed
}

// checkDemo checks the report of a demo whose pod was killed halfway through.
func checkDemo(t *testing.T, got result) {
	t.Helper()
	is := is.New(t)
	is.Equal(got.err, "")
	is.Equal(got.code, cli.CodeOK)
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

func TestDemoWithMissingFile(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	got := trapeze(t, []string{"TMPDIR=" + t.TempDir()}, "demo", "--file", "/nowhere/flights.csv")
	is.Equal(got.code, cli.CodeUsage)
	is.Equal(got.out, "") // nothing was started
}
