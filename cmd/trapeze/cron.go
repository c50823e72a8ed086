package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newCronCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cron",
		Short: "List and change schedules",
		Long: `A schedule submits a job whenever its moment comes, once, however many pods there are and whatever their clocks say. It lies in
the database: a change is in force on every pod with its next heartbeat.

  trapeze cron next "30 2 * * *" --zone Europe/Zurich    what an expression means; needs no database
  trapeze cron set nightly "30 2 * * *" recalculate      make one
  trapeze cron set nightly --zone Europe/Zurich          change one thing, keep the rest
  trapeze cron ls                                        what there is, when it fires, what came of it`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newCronListCommand(), newCronShowCommand(), newCronFiresCommand(), newCronNextCommand(), newCronSetCommand(),
		newCronRemoveCommand(), newCronPauseCommand(), newCronResumeCommand(), newCronTriggerCommand())
	return c
}

func newCronListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "ls",
		Short: "List schedules: when they fire, and what came of it",
		Long: `List schedules by name. WHEN is what the expression says, in its time zone; NEXT how long until the next fire, and that moment there;
LAST what came of the latest one. The history of one: trapeze cron fires.`,
		Example: "  trapeze cron ls\n  trapeze cron ls --watch\n  trapeze cron ls --json | jq -r 'select(.paused) | .name'",
		Args:    cobra.NoArgs,
	}
	every := watchFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return onBackend(c, func(at *server) error {
			return watching(c, *every, func(ctx context.Context) error {
				list, err := at.Schedules(ctx)
				if err != nil {
					return err
				}
				return printSchedules(c, list, time.Now())
			})
		})
	}
	return c
}

func printSchedules(c *cobra.Command, list []job.ScheduleUse, now time.Time) error {
	var rows [][]string
	for _, s := range list {
		if wantsJSON(c) {
			if err := printJSON(c, s); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{s.Name, short(s.Words, 60), nextOf(s, now), lastOf(s, now), scheduleState(s), s.Kind})
	}
	if wantsJSON(c) {
		return nil
	}
	return printTable(c, "NAME WHEN NEXT LAST STATE KIND", rows)
}

// scheduleState says whether a schedule fires, and if not, why.
func scheduleState(s job.ScheduleUse) string {
	switch {
	case s.Error != "":
		return "error: " + short(s.Error, 60)
	case s.Paused:
		return "paused"
	case len(s.NextFires) == 0:
		return "over"
	}
	return "on"
}

// nextOf is when a schedule fires next: the moment that the database has, else, before a pod has planned it, what the expression says.
func nextOf(s job.ScheduleUse, now time.Time) string {
	at := s.NextAt
	if at == nil && len(s.NextFires) > 0 {
		at = &s.NextFires[0]
	}
	if at == nil || s.Paused {
		return ""
	}
	return ahead(*at, now) + ", " + clockIn(s.Zone, at)
}

// ahead says how long it is until a moment, or for how long it has been due.
func ahead(at, now time.Time) string {
	if d := now.Sub(at); d >= time.Second {
		return "due for " + since(&at, now)
	}
	return "in " + since(&now, at)
}

// lastOf says what came of the latest fire.
func lastOf(s job.ScheduleUse, now time.Time) string {
	if len(s.LastFires) == 0 {
		return "never"
	}
	last := s.LastFires[0]
	return fireResult(last) + " " + since(&last.FireAt, now) + " ago"
}

// fireResult is what became of a fire: of its job, if there is one.
func fireResult(f job.Fire) string {
	switch {
	case f.Outcome != job.FireFired:
		return string(f.Outcome)
	case f.State != "":
		return string(f.State)
	}
	return string(f.Outcome)
}

// fireNote says what is special about a fire.
func fireNote(f job.Fire) string {
	var notes []string
	if f.Manual {
		notes = append(notes, "triggered")
	}
	if f.Missed > 0 {
		notes = append(notes, fmt.Sprintf("and for %s missed before it", countOf(f.Missed, "fire", "fires")))
	}
	if f.Message != "" {
		notes = append(notes, short(f.Message, 80))
	}
	return strings.Join(notes, "; ")
}
