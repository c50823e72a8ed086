package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func newJobsCommand() *cobra.Command {
	var (
		which   selecting
		limit   int
		current bool
	)
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, newest first",
		Example: `  trapeze jobs --state running,pending
  trapeze jobs --state failed --since 24h --json | jq -r .error
  trapeze jobs --pipeline 4711
  trapeze jobs --current --kind factor_sync --subject 2025`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			filter.Current = current
			if limit < 0 {
				return usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			return onBackend(c, func(from *server) error { return listJobs(c, from, filter, limit) })
		},
	}
	which.flags(c)
	c.Flags().BoolVar(&current, "current", false, "only the current run of each kind and subject: what runs, else what ran last")
	c.Flags().IntVar(&limit, "limit", 50, "at most so many; 0 is all")
	return c
}

// listJobs prints up to limit jobs (0: all), page by page.
func listJobs(c *cobra.Command, from *server, filter store.Filter, limit int) error {
	var rows [][]string
	now := time.Now()
	for left := limit; ; {
		filter.Limit = 1000
		if limit > 0 {
			filter.Limit = min(left, 1000)
		}
		page, err := from.Jobs(c.Context(), filter)
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
	return printTable(c, "ID KIND LANE SUBJECT STATE PRI TRY AGE NOTE", rows)
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
