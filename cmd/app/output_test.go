package app

import (
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/store/admin"

	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares the output of print with a file.
func golden(t *testing.T, name string, print func(c *cobra.Command) error) {
	t.Helper()
	is := is.New(t)
	var got bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&got)
	is.NoErr(print(c))
	file := filepath.Join("testdata", name)
	if *update {
		is.NoErr(os.MkdirAll("testdata", 0o755))
		is.NoErr(os.WriteFile(file, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	is.NoErr(err)
	is.Equal(got.String(), string(want)) // -update rewrites the golden file
}

var noon = time.Date(2025, 1, 31, 12, 0, 0, 0, time.UTC)

func aJob() job.JobRow {
	started, done, total := noon.Add(-90*time.Second), int64(30), int64(120)
	limit, message, podID := 3, "rows\x1b[31m", "79e1bf4c-8247-44ef-b442-9ddb90e322f0"
	return job.JobRow{
		ID: 4711, Kind: "csv_ingest", Lane: "default", Subject: "travel/2025", Key: "tenant-42", State: job.Running, IsCurrent: true, Priority: 10,
		Attempt: 1, MaxAttempts: &limit, Fence: 2, Epoch: 1, Pod: &podID, PipelineID: 4711, Args: json.RawMessage(`{"file":"flights.csv"}`),
		Progress: &job.Progress{Done: &done, Total: &total, Message: &message}, Submitter: "ana", CreatedAt: noon.Add(-2 * time.Minute),
		StartedAt: &started,
	}
}

func TestJobTextOutput(t *testing.T) {
	golden(t, "job.txt", func(c *cobra.Command) error {
		return printJob(c, aJob(), "web-1 (id 79e1bf4c-8247-44ef-b442-9ddb90e322f0)", "")
	})
}

func TestFailureTextOutputWithStack(t *testing.T) {
	golden(t, "job_failed.txt", func(c *cobra.Command) error {
		j := aJob()
		reason, outcome := job.Reason("error"), job.OutcomeStatus("error")
		text := "panic: row 17: " + strings.Repeat("no coordinates for airport ", 6) + "\n\ngoroutine 9 [running]:\nmain.ingest(0x7)\n\t/src/ingest.go:42 +0x1d" + strings.Repeat("\nmore", 50)
		j.State, j.Reason, j.Outcome, j.Error, j.Progress = job.Failed, &reason, &outcome, &text, nil
		ended := noon
		j.FinishedAt, j.Result = &ended, nil
		return printJob(c, j, *j.Pod, "")
	})
}

func TestAuditTextOutput(t *testing.T) {
	golden(t, "audit.txt", func(c *cobra.Command) error {
		return cli.Table(c, "ID AT ACTOR ACTION TARGET RESULT FROM WHY CHANGE", [][]string{
			auditCells(admin.AuditRow{ID: 2, At: noon, Actor: "bo", Source: "10.0.0.7", Action: "lane.set", Target: "lane default", Reason: "it needs the permission workers:manage"}),
			auditCells(admin.AuditRow{ID: 1, At: noon, Actor: "ana", Source: "cli", Action: "lane.set", Target: "lane default", Allowed: true, Reason: "month's end",
				Before: json.RawMessage(`{"slots":2}`), After: json.RawMessage(`{"slots":4}`)}),
		})
	})
}

func TestPsShowsSlotsAndLanes(t *testing.T) {
	limit, oldest := 2, noon.Add(-3*time.Hour)
	golden(t, "ps.txt", func(c *cobra.Command) error {
		j := aJob()
		return printPs(c, job.Fleet{
			Queue: job.QueueState{Frozen: true},
			Running: []job.Slot{{Job: j.ID, Kind: j.Kind, Lane: j.Lane, Subject: j.Subject, Key: j.Key, Priority: j.Priority, Attempt: j.Attempt,
				PodID: *j.Pod, Pod: "web-1", Since: *j.StartedAt, Progress: j.Progress}},
			Lanes: []job.LaneUse{
				{Name: "default", Enabled: true, Running: 1},
				{Name: "maintenance", Slots: &limit, SlotsPerPod: &limit, Enabled: true, Drained: true, Waiting: 12, Oldest: &oldest},
			},
		}, noon)
	})
}

func TestAnEventIsOneLine(t *testing.T) {
	id, no, fence, pod, message := int64(4711), 3, int64(2), "web-1", "the pod lapsed\nand was recovered"
	golden(t, "event.txt", func(c *cobra.Command) error {
		return printEvent(c, job.Event{
			Cursor: "812.4711.3", Job: &id, EventNo: &no, At: noon, From: job.Running, To: job.Pending, Actor: "system", Pod: &pod,
			Fence: &fence, Level: "warn", Event: "job.recovered", Message: &message, Fields: json.RawMessage(`{"reason":"lapsed"}`),
		})
	})
}

func TestHelpTeaches(t *testing.T) {
	golden(t, "help.txt", func(c *cobra.Command) error {
		root := Command(Options{Name: "trapeze"})
		root.SetOut(c.OutOrStdout())
		root.SetArgs([]string{"enqueue", "--help"})
		return root.Execute()
	})
}
