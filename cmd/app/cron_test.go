package app

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/job"
)

// aSchedule returns a schedule that fires at half past two. Its history contains an occurrence that fired, one that was missed, and a
// duplicate.
func aSchedule() job.ScheduleUse {
	id, took := int64(4711), job.Seconds(92500*time.Millisecond)
	next := noon.Add(14*time.Hour + 30*time.Minute)
	s := job.ScheduleUse{
		Schedule: job.Schedule{Name: "nightly", ScheduleSetting: job.DefaultSchedule(), FromCode: true, Anchor: noon, NextAt: &next,
			CreatedAt: noon.Add(-72 * time.Hour), UpdatedAt: noon.Add(-time.Hour)},
		Words:     "at 02:30 every day, UTC",
		NextFires: []time.Time{next, next.AddDate(0, 0, 1)},
		LastFires: []job.Occurrence{
			{Schedule: "nightly", FireAt: noon.Add(-9 * time.Hour), DecidedAt: noon.Add(-9 * time.Hour).Add(120 * time.Millisecond), Outcome: job.OccurrenceFired,
				JobID: &id, State: job.Succeeded, Took: &took},
			{Schedule: "nightly", FireAt: noon.Add(-33 * time.Hour), DecidedAt: noon.Add(-32 * time.Hour), Outcome: job.OccurrenceMissed, Missed: 2,
				Message: "no pod processed it in time, and missed occurrences are skipped"},
			{Schedule: "nightly", FireAt: noon.Add(-50 * time.Hour), DecidedAt: noon.Add(-50 * time.Hour), Outcome: job.OccurrenceDuplicate, Manual: true,
				Message: "job 4700 holds the unique key\x1b[31m"},
		},
	}
	s.Expression, s.Kind, s.Args, s.Overlap = "30 2 * * *", "factor_sync", json.RawMessage(`{"year":2025}`), job.OverlapSkip
	return s
}

func TestSchedulesAreShownToPeople(t *testing.T) {
	golden(t, "cron_show.txt", func(c *cobra.Command) error { return printSchedule(c, aSchedule(), noon) })
	golden(t, "cron_ls.txt", func(c *cobra.Command) error {
		paused, broken, over, late := aSchedule(), aSchedule(), aSchedule(), aSchedule()
		paused.Name, paused.Paused, paused.NextAt, paused.NextFires, paused.LastFires = "paused", true, nil, nil, nil
		broken.Name, broken.Error, broken.NextAt, broken.NextFires, broken.Words = "broken", `expression "x" has 1 field`, nil, nil, ""
		over.Name, over.NextAt, over.NextFires, over.LastFires = "over", nil, nil, over.LastFires[1:]
		due := noon.Add(-90 * time.Second)
		late.Name, late.NextAt = "late", &due
		return printSchedules(c, cli.Rows([]job.ScheduleUse{broken, late, aSchedule(), over, paused}), noon)
	})
	golden(t, "cron_help.txt", func(c *cobra.Command) error {
		root := Command(Options{Name: "trapeze"})
		root.SetOut(c.OutOrStdout())
		root.SetArgs([]string{"cron", "set", "--help"})
		return root.Execute()
	})
}
