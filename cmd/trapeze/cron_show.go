package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

// onSchedule makes a command whose first word is a schedule's name, which the shell completes.
func onSchedule(c *cobra.Command, do func(ctx context.Context, c *cobra.Command, at *server, name string) error) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.ValidArgsFunction = first(completes(scheduleWords))
	c.RunE = func(c *cobra.Command, args []string) error {
		return onBackend(c, func(at *server) error { return do(c.Context(), c, at, args[0]) })
	}
	return c
}

func newCronShowCommand() *cobra.Command {
	return onSchedule(&cobra.Command{
		Use:     "show NAME",
		Short:   "Show a schedule, its next fires and its last ones",
		Example: "  trapeze cron show nightly\n  trapeze cron show nightly --json | jq .next_fires",
	}, func(ctx context.Context, c *cobra.Command, at *server, name string) error {
		one, err := at.Schedule(ctx, name)
		if err != nil {
			return err
		}
		if wantsJSON(c) {
			return printJSON(c, one)
		}
		return printSchedule(c, one, time.Now())
	})
}

// printSchedule prints what is known of a schedule, a line a fact, and the last fires below.
func printSchedule(c *cobra.Command, s job.ScheduleUse, now time.Time) error {
	var b strings.Builder
	colours := inkFor(c.OutOrStdout())
	line := func(name, value string) { fact(&b, colours, name, value) }
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
	line("args", short(compacted(s.Args), 2000))
	line("lane", s.Lane)
	line("subject", s.Subject)
	line("priority", strconv.Itoa(s.Priority))
	line("unique key", s.UniqueKey)
	line("if missed", missedWords(s.ScheduleSetting))
	line("if it overlaps", overlapWords(s.Overlap))
	if s.FromCode {
		line("declared", "by the program; what an operator changed stays")
	}
	line("created", clock(&s.CreatedAt))
	line("changed", clock(&s.UpdatedAt))
	if _, err := fmt.Fprintln(c.OutOrStdout(), b.String()); err != nil {
		return err
	}
	return printFires(c, s.LastFires[:min(len(s.LastFires), 5)])
}

func compacted(raw json.RawMessage) string {
	if string(raw) == "{}" {
		return ""
	}
	return string(raw)
}

func moments(zone string, list []time.Time) string {
	lines := make([]string, len(list))
	for i := range list {
		lines[i] = clockIn(zone, &list[i])
	}
	return strings.Join(lines, "\n")
}

func missedWords(s job.ScheduleSetting) string {
	switch s.Missed {
	case job.MissedCoalesce:
		return "coalesce: one job for all"
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
		return "queue: its job is submitted all the same"
	case job.OverlapSkip:
		return "skip: no job while the one before goes on"
	}
	return string(o)
}

func newCronFiresCommand() *cobra.Command {
	limit := 20
	c := onSchedule(&cobra.Command{
		Use:   "fires NAME",
		Short: "List what became of each fire of a schedule, newest first",
		Long: `List what became of each fire of a schedule, newest first: fired, with the state of its job; duplicate, when an earlier job holds its
unique key; overlap, when the job of the one before went on; missed, when nobody was there; failed, when its job was refused.`,
		Example: "  trapeze cron fires nightly\n  trapeze cron fires nightly --limit 200 --json | jq -r 'select(.outcome == \"missed\") | .fire_at'",
	}, func(ctx context.Context, c *cobra.Command, at *server, name string) error {
		if limit < 1 {
			return usage("--limit %d: want at least 1", limit)
		}
		list, err := at.ScheduleFires(ctx, name, limit)
		if err != nil {
			return err
		}
		return printFires(c, list)
	})
	c.Flags().IntVar(&limit, "limit", limit, "at most so many")
	return c
}

func printFires(c *cobra.Command, list []job.Fire) error {
	var rows [][]string
	for _, f := range list {
		if wantsJSON(c) {
			if err := printJSON(c, f); err != nil {
				return err
			}
			continue
		}
		id, took := "", ""
		if f.JobID != nil {
			id = strconv.FormatInt(*f.JobID, 10)
		}
		if f.Seconds != nil {
			took = seconds(*f.Seconds)
		}
		rows = append(rows, []string{clock(&f.FireAt), string(f.Outcome), id, string(f.State), took, since(&f.FireAt, f.DecidedAt), fireNote(f)})
	}
	if wantsJSON(c) {
		return nil
	}
	return printTable(c, "FIRE OUTCOME JOB STATE TOOK LATE NOTE", rows)
}
