package app

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

func newCronCommand() *cobra.Command {
	return parent(&cobra.Command{
		Use:   "cron",
		Short: "List and change schedules",
		Long: `A schedule submits one job at each of its occurrences, regardless of the number of pods and of their clocks. Schedules are stored in
the database; every pod applies a change with its next heartbeat.

  trapeze cron next "30 2 * * *" --zone Europe/Zurich    explain an expression; needs no database
  trapeze cron set nightly "30 2 * * *" recalculate      create a schedule
  trapeze cron set nightly --zone Europe/Zurich          change one setting, keep the others
  trapeze cron ls                                        list schedules, next and last occurrences`,
	}, newCronListCommand(), newCronShowCommand(), newCronOccurrencesCommand(), newCronNextCommand(), newCronSetCommand(),
		newCronRemoveCommand(), newCronPauseCommand(), newCronResumeCommand(), newCronTriggerCommand())
}

func newCronListCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "ls",
		Short: "List schedules with their next and last occurrences",
		Long: `List schedules by name. WHEN explains the expression in its time zone. NEXT is the time until the next occurrence, and its local time.
LAST is the outcome of the latest occurrence. For the history of a schedule, use trapeze cron occurrences.`,
		Example: "  trapeze cron ls\n  trapeze cron ls --watch\n  trapeze cron ls --json | jq -r 'select(.paused) | .name'",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, c *cobra.Command, at *cli.Client) error {
		return printSchedules(c, readSchedules(ctx, at), time.Now())
	})
}

func printSchedules(c *cobra.Command, list iter.Seq2[job.ScheduleUse, error], now time.Time) error {
	return cli.List(c, "NAME WHEN NEXT LAST STATE KIND", list, func(s job.ScheduleUse) []string {
		return []string{s.Name, text.Short(s.Words, 60), nextOf(s, now), lastOf(s, now), scheduleState(s), s.Kind}
	})
}

// scheduleState describes a schedule's state and, if the schedule does not fire, the reason.
func scheduleState(s job.ScheduleUse) string {
	switch {
	case s.Error != "":
		return "error: " + text.Short(s.Error, 60)
	case s.Paused:
		return "paused"
	case len(s.NextFires) == 0:
		return "over"
	}
	return "on"
}

// nextOf describes when a schedule will next fire. The time comes from the database or, if no pod has planned the schedule yet, from its
// expression.
func nextOf(s job.ScheduleUse, now time.Time) string {
	at := s.NextAt
	if at == nil && len(s.NextFires) > 0 {
		at = &s.NextFires[0]
	}
	if at == nil || s.Paused {
		return ""
	}
	return untilText(*at, now) + ", " + text.ClockIn(s.Zone, at)
}

// untilText describes the time until at, or since at if it has passed.
func untilText(at, now time.Time) string {
	if d := now.Sub(at); d >= time.Second {
		return "due for " + text.Ago(&at, now)
	}
	return "in " + text.Ago(&now, at)
}

// lastOf describes the outcome of the latest occurrence.
func lastOf(s job.ScheduleUse, now time.Time) string {
	if len(s.LastFires) == 0 {
		return "never"
	}
	last := s.LastFires[0]
	return fireResult(last) + " " + text.Ago(&last.FireAt, now) + " ago"
}

// fireResult describes the outcome of an occurrence or, if it has a job, the job's state.
func fireResult(f job.Occurrence) string {
	switch {
	case f.Outcome != job.OccurrenceFired:
		return string(f.Outcome)
	case f.State != "":
		return string(f.State)
	}
	return string(f.Outcome)
}

// fireNote lists anything unusual about an occurrence.
func fireNote(f job.Occurrence) string {
	var notes []string
	if f.Manual {
		notes = append(notes, "triggered")
	}
	if f.Missed > 0 {
		notes = append(notes, fmt.Sprintf("also for %d earlier missed", f.Missed))
	}
	if f.Message != "" {
		notes = append(notes, text.Short(f.Message, 80))
	}
	return strings.Join(notes, "; ")
}

// onSchedule completes the setup of a command whose only argument is a schedule name.
func onSchedule(c *cobra.Command, do func(ctx context.Context, c *cobra.Command, at *cli.Client, name string) error) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.ValidArgsFunction = firstArgument(completes(scheduleWords))
	c.RunE = func(c *cobra.Command, args []string) error {
		return onClient(c, func(at *cli.Client) error { return do(c.Context(), c, at, args[0]) })
	}
	return c
}

func newCronShowCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:     "show NAME",
		Short:   "Show a schedule with its next and last occurrences",
		Example: "  trapeze cron show nightly\n  trapeze cron show nightly --json | jq .next_occurrences",
	}, func(ctx context.Context, c *cobra.Command, at *cli.Client, name string) error {
		schedule, err := cli.Get[job.ScheduleUse](ctx, at, cli.Path(scheduleRoute, name), nil)
		if err != nil {
			return err
		}
		return cli.Show(c, schedule, func() error { return printSchedule(c, schedule, time.Now()) })
	})
}

// printSchedule prints a schedule's properties, one per line, followed by its latest occurrences.
func printSchedule(c *cobra.Command, s job.ScheduleUse, now time.Time) error {
	var b strings.Builder
	colours := cli.InkFor(c.OutOrStdout())
	line := func(name, value string) { cli.Fact(&b, colours, name, value) }
	line("name", s.Name)
	line("when", s.Words)
	line("expression", s.Expression)
	line("zone", s.Zone)
	line("state", scheduleState(s))
	line("next", nextOf(s, now))
	if len(s.NextFires) > 1 {
		line("then", moments(s.Zone, s.NextFires[1:]))
	}
	line("kind", s.Kind)
	line("args", text.Short(omitEmptyArgs(s.Args), 2000))
	line("lane", s.Lane)
	line("subject", s.Subject)
	line("key", s.Key)
	line("priority", strconv.Itoa(s.Priority))
	line("unique key", s.UniqueKey)
	line("if missed", missedWords(s.ScheduleSetting))
	line("if it overlaps", overlapWords(s.Overlap))
	if s.FromCode {
		line("declared", "by the program; changes of operators are kept")
	}
	line("created", text.Clock(&s.CreatedAt))
	line("changed", text.Clock(&s.UpdatedAt))
	if _, err := fmt.Fprintln(c.OutOrStdout(), b.String()); err != nil {
		return err
	}
	return printOccurrences(c, cli.Rows(s.LastFires[:min(len(s.LastFires), 5)]))
}

func omitEmptyArgs(raw json.RawMessage) string {
	if string(raw) == "{}" {
		return ""
	}
	return string(raw)
}

func moments(zone string, list []time.Time) string {
	lines := make([]string, len(list))
	for i := range list {
		lines[i] = text.ClockIn(zone, &list[i])
	}
	return strings.Join(lines, "\n")
}

func missedWords(s job.ScheduleSetting) string {
	switch s.Missed {
	case job.MissedCoalesce:
		return "coalesce: one job for all of them"
	case job.MissedCatchUp:
		return fmt.Sprintf("catch_up: a job for each of the latest %d", s.CatchUp)
	case job.MissedSkip:
		return "skip: no job"
	}
	return string(s.Missed)
}

func overlapWords(o job.Overlap) string {
	switch o {
	case job.OverlapQueue:
		return "queue: submit its job anyway"
	case job.OverlapSkip:
		return "skip: no job while the previous one is unfinished"
	}
	return string(o)
}

func newCronOccurrencesCommand() *cobra.Command {
	limit := 20
	c := onSchedule(&cobra.Command{
		Use:   "occurrences NAME",
		Short: "List the occurrences of a schedule and their outcomes, newest first",
		Long: `List the occurrences of a schedule, newest first. Outcomes: fired (with the state of its job), duplicate (an earlier job holds the
unique key), overlap (the previous job was unfinished), missed (no pod processed it in time), failed (the job was rejected).`,
		Example: "  trapeze cron occurrences nightly\n  trapeze cron occurrences nightly --limit 200 --json | jq -r 'select(.outcome == \"missed\") | .fire_at'",
	}, func(ctx context.Context, c *cobra.Command, at *cli.Client, name string) error {
		if limit < 1 {
			return cli.Usage("--limit %d: want at least 1", limit)
		}
		return printOccurrences(c, cli.ListAll[job.Occurrence](ctx, at, cli.Path(scheduleRoute+"/occurrences", name), "occurrences", cli.QueryOf("limit", strconv.Itoa(limit))))
	})
	c.Flags().IntVar(&limit, "limit", limit, "maximum number of rows")
	return c
}

func printOccurrences(c *cobra.Command, list iter.Seq2[job.Occurrence, error]) error {
	return cli.List(c, "TIME OUTCOME JOB STATE TOOK LATE NOTE", list, func(f job.Occurrence) []string {
		id, took := "", ""
		if f.JobID != nil {
			id = strconv.FormatInt(*f.JobID, 10)
		}
		if f.Took != nil {
			took = text.Seconds(f.Took.Duration().Seconds())
		}
		return []string{text.Clock(&f.FireAt), string(f.Outcome), id, string(f.State), took, text.Ago(&f.FireAt, f.DecidedAt), fireNote(f)}
	})
}

// scheduleRoute is the API route for one schedule.
const scheduleRoute = "/admin/workers/schedules/:name"

func newCronRemoveCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:   "rm NAME",
		Short: "Delete a schedule",
		Long: `Delete a schedule. Its jobs continue, and its history is kept. A schedule that the program declares stays deleted until
an operator sets it again.`,
		Example: "  trapeze cron rm nightly --reason \"moved to the warehouse\"",
	}, func(ctx context.Context, c *cobra.Command, at *cli.Client, name string) error {
		if _, err := cli.Do[cli.None](ctx, at, http.MethodDelete, cli.Path(scheduleRoute, name), nil); err != nil {
			return err
		}
		return cli.Done(c, map[string]any{"schedule": name, "deleted": true}, "schedule %s deleted", name)
	})
}

func newCronPauseCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:     "pause NAME",
		Short:   "Pause a schedule until it is resumed",
		Long:    "Pause a schedule until it is resumed. Its jobs continue. Occurrences during the pause are skipped.",
		Example: "  trapeze cron pause nightly --reason \"month's end\"",
	}, changeSchedule("paused", "pause"))
}

func newCronResumeCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:     "resume NAME",
		Short:   "Resume a paused schedule from now on",
		Example: "  trapeze cron resume nightly",
	}, changeSchedule("resumed", "resume"))
}

func changeSchedule(now, command string) func(context.Context, *cobra.Command, *cli.Client, string) error {
	return func(_ context.Context, c *cobra.Command, at *cli.Client, name string) error {
		return changeAt(c, at, "schedule "+name+" "+now, cli.Path(scheduleRoute, name)+"/"+command)
	}
}

func newCronTriggerCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:   "trigger NAME",
		Short: "Submit the job of a schedule now, and print its id",
		Long: `Submit the job of a schedule now, even if the schedule is paused, and print the job's id. Planned occurrences do not change. Exit code 1
when no job was submitted because its unique key is held or it was rejected.`,
		Example: "  trapeze cron trigger nightly --reason \"last night's input was late\"",
	}, func(ctx context.Context, c *cobra.Command, at *cli.Client, name string) error {
		fire, err := cli.Post[job.Occurrence](ctx, at, cli.Path(scheduleRoute+"/trigger", name), nil)
		if err != nil {
			return err
		}
		return printTriggered(c, fire)
	})
}

// printTriggered prints the job of a triggered occurrence. It returns an error if no job was created.
func printTriggered(c *cobra.Command, fire job.Occurrence) (err error) {
	switch {
	case cli.WantsJSON(c):
		err = cli.JSON(c, fire)
	case fire.Outcome == job.OccurrenceFired && fire.JobID != nil:
		_, err = fmt.Fprintln(c.OutOrStdout(), *fire.JobID)
	}
	if err == nil && fire.Outcome != job.OccurrenceFired {
		err = cli.Refused("schedule %s submitted no job: %s; see trapeze cron occurrences %s", fire.Schedule, whyNoJob(fire), fire.Schedule)
	}
	return err
}

func whyNoJob(f job.Occurrence) string {
	if f.Message != "" {
		return string(f.Outcome) + ": " + f.Message
	}
	return string(f.Outcome)
}

// mostNext is the maximum number of occurrences that `cron next` prints.
const mostNext = 1000

func newCronNextCommand() *cobra.Command {
	var zone, from string
	var n int
	c := &cobra.Command{
		Use:   "next EXPRESSION",
		Short: "Explain an expression and list its next occurrences",
		Long: `Explain an expression in words and list its next occurrences, in its zone and in UTC. Needs neither a database nor a server: try an
expression here before you set it. For the syntax of expressions, see trapeze cron set --help.`,
		Example: `  trapeze cron next "30 2 * * *" --zone Europe/Zurich
  trapeze cron next "0 9 * * mon-fri" -n 10
  trapeze cron next "30 2 * * *" --zone Europe/Zurich --from 2026-03-28T12:00:00Z    # across the change to summer time`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if n < 1 || n > mostNext {
				return cli.Usage("-n %d: want 1 to %d", n, mostNext)
			}
			after := time.Now()
			if from != "" {
				at, err := time.Parse(time.RFC3339, from)
				if err != nil {
					return cli.Usage("--from %q: want a time such as 2026-03-28T12:00:00Z", from)
				}
				after = at
			}
			shown, err := scheduler.Preview(args[0], zone, after, n)
			if err != nil {
				return err
			}
			return cli.Show(c, shown, func() error { return printPreview(c, shown) })
		},
	}
	f := c.Flags()
	f.StringVar(&zone, "zone", job.DefaultSchedule().Zone, "time zone of the expression, by its IANA name")
	f.IntVarP(&n, "number", "n", 5, "number of occurrences")
	f.StringVar(&from, "from", "", "list occurrences after this time (default: now)")
	return c
}

func printPreview(c *cobra.Command, shown job.SchedulePreview) error {
	zone, err := time.LoadLocation(shown.Zone)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, at := range shown.NextFires {
		rows = append(rows, []string{at.In(zone).Format("Mon 2006-01-02 15:04:05 -07:00"), text.Clock(&at)})
	}
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "%s\n\n", text.Printable(shown.Words)); err != nil {
		return err
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "no further occurrences")
		return err
	}
	return cli.Table(c, "LOCAL UTC", rows)
}

// scheduleFlags holds the flags of `cron set`.
type scheduleFlags struct {
	args, zone, lane, subject, key, unique, missed, overlap string
	priority, catchUp                                       int
	dry                                                     bool
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
					AllowUnregistered bool `json:"allow_unregistered"` // the server need not know the kind
				}{change, true}
				done, err := putSetting[job.ScheduleChanged](c.Context(), at, cli.Path(scheduleRoute, args[0]), s.dry, body, !change.Existing)
				if err != nil {
					return err
				}
				return cli.Show(c, done, func() error { return printScheduleChanged(c, done) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&s.args, "args", "", "arguments of the job: JSON, @file, or - for stdin (default {})")
	f.StringVar(&s.zone, "zone", usual.Zone, "time zone of the expression, by its IANA name")
	f.StringVar(&s.lane, "lane", "", "lane of the job (default: its kind's)")
	f.StringVar(&s.subject, "subject", "", "subject of the job: one job per kind and subject runs at a time")
	f.StringVar(&s.key, "key", "", "key of the job: whose job it is, such as a tenant")
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
	given("key", func() { change.Key = &s.key })
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
	var b strings.Builder
	fmt.Fprintf(&b, "schedule %s %s\n", done.Schedule, whatChanged("unchanged", done.Created, done.Changed, done.DryRun))
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
