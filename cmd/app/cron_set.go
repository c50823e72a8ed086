package app

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli/client"
	"github.com/trapeze-run/trapeze/internal/cli/show"
	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/job"
)

// scheduling is the flags of cron set.
type scheduling struct {
	args, zone, lane, subject, unique, missed, overlap string
	priority, catchUp                                  int
	dry                                                bool
}

func newCronSetCommand() *cobra.Command {
	var s scheduling
	usual := job.DefaultSchedule()
	c := &cobra.Command{
		Use:   "set NAME [EXPRESSION [KIND]]",
		Short: "Create a schedule, or change some of its settings",
		Long: `Create a schedule, or change what is named of it; the rest stays. A new one needs its expression and the kind of its job.

  30 2 * * *                minute, hour, day of the month, month, day of the week
  15 30 2 * * *             seconds first
  @daily                    also @hourly, @weekly, @monthly, @yearly
  @every 15m                steadily, from when it is made
  @at 2027-01-31T03:00      once; with Z or +01:00 behind it, not of --zone

Where the clocks change: a time that they skip in spring is the moment right after; one that they show twice in autumn is the first.
What an expression means, without a database: trapeze cron next.

--missed says what becomes of fires that no pod was there for: coalesce (one job for all), catch_up (a job for each of the latest
--catch-up), skip (none). --overlap says what becomes of one while the job of the one before goes on: queue, or skip. Whether a pod has a
handler of the kind is not asked: until one has, nothing fires.`,
		Example: `  trapeze cron set nightly "30 2 * * *" factor_sync --zone Europe/Zurich --overlap skip
  trapeze cron set nightly --zone UTC                      # the rest stays
  trapeze cron set nightly "0 4 * * *" --dry-run           # what would change, and when it would fire
  trapeze cron set poll "@every 15m" import --args '{"full":false}' --unique import`,
		Args: cobra.RangeArgs(1, 3),
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return completes(scheduleWords)(c, args, begun)
			case 2:
				return completes(kindWords)(c, args, begun)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			change, err := s.change(c, args[1:])
			if err != nil {
				return err
			}
			return onClient(c, func(at *client.Client) error {
				body := struct {
					job.ScheduleChange
					Foreign bool `json:"foreign"` // the kind need not be known to the server
				}{change, true}
				done, err := putSetting[job.ScheduleChanged](c.Context(), at, client.Path(scheduleRoute, args[0]), s.dry, body, !change.Existing)
				if err != nil {
					return err
				}
				return printScheduleChanged(c, done)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&s.args, "args", "", "arguments of the job: JSON, @file, or - for stdin (default {})")
	f.StringVar(&s.zone, "zone", usual.Zone, "time zone of the expression, by its IANA name")
	f.StringVar(&s.lane, "lane", "", "lane of the job (default: its kind's)")
	f.StringVar(&s.subject, "subject", "", "what the job is about: one of a kind and subject runs at a time")
	f.IntVar(&s.priority, "priority", usual.Priority, "-100 to 100, higher first")
	f.StringVar(&s.unique, "unique", "", "a key of the job: while an earlier one holds it, a fire makes none")
	f.StringVar(&s.missed, "missed", string(usual.Missed), "coalesce, catch_up or skip")
	f.IntVar(&s.catchUp, "catch-up", usual.CatchUp, fmt.Sprintf("so many missed fires catch_up makes up for, at most %d", job.MaxCatchUp))
	f.StringVar(&s.overlap, "overlap", string(usual.Overlap), "queue or skip")
	f.BoolVar(&s.dry, "dry-run", false, "only tell what would change, and when it would fire")
	return c
}

// change is what the words and flags say; those that were not given change nothing.
func (s *scheduling) change(c *cobra.Command, words []string) (job.ScheduleChange, error) {
	change := job.ScheduleChange{Existing: len(words) < 2}
	if len(words) > 0 {
		change.Expression = &words[0]
	}
	if len(words) > 1 {
		change.Kind = &words[1]
	}
	given := func(flag string, say func()) {
		if c.Flags().Changed(flag) {
			say()
		}
	}
	missed, overlap := job.Missed(s.missed), job.Overlap(s.overlap)
	given("zone", func() { change.Zone = &s.zone })
	given("lane", func() { change.Lane = &s.lane })
	given("subject", func() { change.Subject = &s.subject })
	given("priority", func() { change.Priority = &s.priority })
	given("unique", func() { change.UniqueKey = &s.unique })
	given("missed", func() { change.Missed = &missed })
	given("catch-up", func() { change.CatchUp = &s.catchUp })
	given("overlap", func() { change.Overlap = &overlap })
	if !c.Flags().Changed("args") {
		return change, nil
	}
	var raw json.RawMessage
	err := decode(c, "--args", s.args, &raw)
	change.Args = &raw
	return change, err
}

// printScheduleChanged tells what became of a schedule, or in a dry run would, and when it fires next.
func printScheduleChanged(c *cobra.Command, done job.ScheduleChanged) error {
	if show.WantsJSON(c) {
		return show.JSON(c, done)
	}
	verb := "is unchanged"
	switch {
	case done.Created:
		verb = "is made"
	case len(done.Changed) > 0:
		verb = "is changed: " + strings.Join(done.Changed, ", ")
	}
	if done.DryRun {
		verb = strings.Replace(verb, "is ", "would be ", 1)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "schedule %s %s\n", done.Schedule, verb)
	fmt.Fprintf(&b, "%s, %s\n", done.After.Kind, done.Words)
	for i := range done.NextFires {
		fmt.Fprintf(&b, "  %s\n", humanize.ClockIn(done.After.Zone, &done.NextFires[i]))
	}
	if done.After.Paused {
		fmt.Fprintf(&b, "It is paused: trapeze cron resume %s\n", done.Schedule)
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(c.OutOrStdout(), humanize.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}
