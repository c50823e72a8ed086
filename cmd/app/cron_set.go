package app

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// scheduleFlags holds the flags of `cron set`.
type scheduleFlags struct {
	args, zone, lane, subject, unique, missed, overlap string
	priority, catchUp                                  int
	dry                                                bool
}

func newCronSetCommand() *cobra.Command {
	var s scheduleFlags
	usual := job.DefaultSchedule()
	c := &cobra.Command{
		Use:   "set NAME [EXPRESSION [KIND]]",
		Short: "Create a schedule, or change some of its settings",
		Long: `Create a schedule, or change the given settings and keep the others. A new schedule needs an expression and a kind.

  30 2 * * *                minute, hour, day of the month, month, day of the week
  15 30 2 * * *             the same with seconds first
  @daily                    also @hourly, @weekly, @monthly, @yearly
  @every 15m                at a fixed interval, counted from its creation
  @at 2027-01-31T03:00      once; a suffix of Z or +01:00 overrides --zone

Clock changes: a local time skipped in spring fires right after the gap; a local time repeated in autumn fires the first time only.
To explain an expression without a database, use trapeze cron next.

--missed sets how occurrences during an outage are handled: coalesce (one job for all), catch_up (one job for each of the latest
--catch-up), skip (no job). --overlap sets whether an occurrence submits a job while the previous job is unfinished: queue (yes) or
skip (no). The kind may be unknown; the schedule fires once a pod has its handler.`,
		Example: `  trapeze cron set nightly "30 2 * * *" factor_sync --zone Europe/Zurich --overlap skip
  trapeze cron set nightly --zone UTC                      # keeps the other settings
  trapeze cron set nightly "0 4 * * *" --dry-run           # show changes and occurrences
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
			return onClient(c, func(at *cli.Client) error {
				body := struct {
					job.ScheduleChange
					Foreign bool `json:"foreign"` // the server need not know the kind
				}{change, true}
				done, err := putSetting[job.ScheduleChanged](c.Context(), at, cli.Path(scheduleRoute, args[0]), s.dry, body, !change.Existing)
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
	f.StringVar(&s.subject, "subject", "", "subject of the job: one job per kind and subject runs at a time")
	f.IntVar(&s.priority, "priority", usual.Priority, "priority, -100 to 100, higher first")
	f.StringVar(&s.unique, "unique", "", "unique key: no job is submitted while an earlier one holds it")
	f.StringVar(&s.missed, "missed", string(usual.Missed), "missed occurrences: coalesce, catch_up or skip")
	f.IntVar(&s.catchUp, "catch-up", usual.CatchUp, fmt.Sprintf("maximum number of missed occurrences for catch_up, at most %d", job.MaxCatchUp))
	f.StringVar(&s.overlap, "overlap", string(usual.Overlap), "while the previous job is unfinished: queue or skip")
	f.BoolVar(&s.dry, "dry-run", false, "show changes and occurrences without saving")
	return c
}

// change returns the schedule change described by the arguments and flags. Flags that are not set change nothing.
func (s *scheduleFlags) change(c *cobra.Command, words []string) (job.ScheduleChange, error) {
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

// printScheduleChanged prints the result of a schedule change and the next occurrences.
func printScheduleChanged(c *cobra.Command, done job.ScheduleChanged) error {
	if cli.WantsJSON(c) {
		return cli.JSON(c, done)
	}
	verb := "unchanged"
	switch {
	case done.Created:
		verb = "created"
	case len(done.Changed) > 0:
		verb = "changed: " + strings.Join(done.Changed, ", ")
	}
	if done.DryRun {
		verb = "would be " + verb
	}
	var b strings.Builder
	fmt.Fprintf(&b, "schedule %s %s\n", done.Schedule, verb)
	fmt.Fprintf(&b, "%s, %s\n", done.After.Kind, done.Words)
	for i := range done.NextFires {
		fmt.Fprintf(&b, "  %s\n", text.ClockIn(done.After.Zone, &done.NextFires[i]))
	}
	if done.After.Paused {
		fmt.Fprintf(&b, "The schedule is paused; resume it with %s cron resume %s\n", c.Root().Name(), done.Schedule)
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(c.OutOrStdout(), text.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}
