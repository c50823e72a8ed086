package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func newJobsCommand() *cobra.Command {
	var (
		which selecting
		limit int
	)
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, newest first",
		Example: `  trapeze jobs --state running,pending
  trapeze jobs --state failed --since 24h --json | jq -r .error
  trapeze jobs --pipeline 4711`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			if limit < 0 {
				return usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			return onDatabase(c, func(db *client) error { return listJobs(c, db, filter, limit) })
		},
	}
	which.flags(c)
	c.Flags().IntVar(&limit, "limit", 50, "at most so many; 0 is all")
	return c
}

// listJobs prints up to limit jobs (0: all), page by page.
func listJobs(c *cobra.Command, db *client, filter store.Filter, limit int) error {
	var rows [][]string
	now := time.Now()
	for left := limit; ; {
		filter.Limit = 1000
		if limit > 0 {
			filter.Limit = min(left, 1000)
		}
		page, err := db.Store().Jobs(c.Context(), filter)
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			if wantsJSON(c) {
				if err := printJSON(c, j); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, []string{
				strconv.FormatInt(j.ID, 10), j.Kind, j.Lane, short(j.Subject, 30), string(j.State), strconv.Itoa(j.Priority),
				strconv.Itoa(j.Attempt), since(&j.CreatedAt, now), short(remark(j), 60),
			})
		}
		left -= len(page.Jobs)
		filter.Cursor = page.Cursor
		if page.Cursor == "" || limit > 0 && left <= 0 {
			break
		}
	}
	if wantsJSON(c) {
		return nil
	}
	return printTable(c, "ID KIND LANE SUBJECT STATE PRIORITY ATTEMPT AGE NOTE", rows)
}

// remark is what a person wants to know of a job beside its state.
func remark(j job.Job) string {
	switch {
	case j.State == job.Failed, j.State == job.Cancelled:
		return whyNot(j)
	case j.State.Terminal():
		if text(j.Outcome) == string(job.Warning) {
			return "warning"
		}
		return ""
	}
	parts := []string{}
	if j.CancelRequested {
		parts = append(parts, "being cancelled")
	}
	if j.State == job.Pending && j.RunAfter != nil && j.RunAfter.After(time.Now()) {
		parts = append(parts, "due "+clock(j.RunAfter))
	}
	if p := progressOf(j.Progress); p != "" {
		parts = append(parts, p)
	}
	return strings.Join(parts, ", ")
}

func newJobCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "job ID",
		Short:   "Show one job",
		Example: "  trapeze job 4711\n  trapeze job 4711 --json | jq .result",
		Args:    cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, db *client, id int64) error {
			j, err := db.Get(c.Context(), id)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				return printJSON(c, j)
			}
			return printJob(c, j)
		}),
	}
}

// printJob prints what is known of a job, a line a fact, without those that say nothing.
func printJob(c *cobra.Command, j job.Job) error {
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	compact := func(raw json.RawMessage) string { return short(string(raw), 2000) }
	attempts := strconv.Itoa(j.Attempt)
	if j.MaxAttempts != nil {
		attempts += " of " + strconv.Itoa(*j.MaxAttempts)
	}
	state := string(j.State)
	if j.CancelRequested {
		state += ", being cancelled"
	}
	line("id", strconv.FormatInt(j.ID, 10))
	line("kind", j.Kind)
	line("state", state)
	line("outcome", text(j.Outcome))
	line("reason", text(j.Reason))
	line("error", text(j.Error))
	line("progress", progressOf(j.Progress))
	line("lane", j.Lane)
	line("subject", j.Subject)
	line("priority", strconv.Itoa(j.Priority))
	line("attempt", attempts)
	if j.Crashes > 0 {
		line("crashes", strconv.Itoa(j.Crashes))
	}
	line("fence", strconv.FormatInt(j.Fence, 10))
	line("pod", text(j.Pod))
	line("pipeline", fmt.Sprintf("%d, step %d", j.PipelineID, j.Step))
	if j.ParentID != nil {
		line("parent", strconv.FormatInt(*j.ParentID, 10))
	}
	line("unique key", text(j.UniqueKey))
	line("submitter", j.Submitter)
	line("created", clock(&j.CreatedAt))
	line("due", clock(j.RunAfter))
	line("started", clock(j.StartedAt))
	line("finished", clock(j.FinishedAt))
	line("args", compact(j.Args))
	line("still to come", compact(j.Planned))
	line("result", compact(j.Result))
	return w.Flush()
}
