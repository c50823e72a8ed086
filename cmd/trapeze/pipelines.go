package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/store"
)

func newPipelinesCommand() *cobra.Command {
	var (
		filter    store.PipelineFilter
		statuses  []string
		sinceText string
		limit     int
	)
	c := &cobra.Command{
		Use:   "pipelines",
		Short: "List pipelines, newest first",
		Long: `List pipelines, newest first: what has had more than one step, or is going to, or was given a name. A pipeline is running
until its last step has ended; partial means that its last step succeeded, but a branch of a fan-out had failed.`,
		Example: `  trapeze pipelines --status running
  trapeze pipelines --status failed,partial --since 24h
  trapeze pipelines --name "emissions 2024" --json | jq -r .id`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if len(statuses) > 0 {
				if filter.Statuses, err = api.ParseStatuses(statuses); err != nil {
					return usage("--status: %w", err)
				}
			}
			if sinceText != "" {
				if filter.Since, err = api.ParseSince(sinceText, time.Now()); err != nil {
					return usage("--since: %w", err)
				}
			}
			if limit < 0 {
				return usage("--limit %d: want 1 or more, or 0 for all", limit)
			}
			from, err := reach(c)
			if err != nil {
				return err
			}
			defer from.Close()
			return listPipelines(c, from, filter, limit)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&statuses, "status", nil, "only these statuses, separated by commas")
	f.StringVar(&filter.Name, "name", "", "only those of this name")
	f.StringVar(&sinceText, "since", "", "only those made since: 2025-01-31T08:00:00Z, or 90m for 90 minutes ago")
	f.IntVar(&limit, "limit", 50, "at most so many; 0 is all")
	return c
}

// listPipelines prints up to limit pipelines (0: all), page by page.
func listPipelines(c *cobra.Command, from *server, filter store.PipelineFilter, limit int) error {
	var rows [][]string
	now := time.Now()
	for left := limit; ; {
		filter.Limit = 1000
		if limit > 0 {
			filter.Limit = min(left, 1000)
		}
		page, err := from.Pipelines(c.Context(), filter)
		if err != nil {
			return err
		}
		for _, p := range page.Pipelines {
			if wantsJSON(c) {
				if err := printJSON(c, p); err != nil {
					return err
				}
				continue
			}
			step := strconv.Itoa(p.Step + 1)
			if planned := len(plannedOf(p)); planned > 0 {
				step += " of " + strconv.Itoa(p.Step+1+planned)
			}
			rows = append(rows, []string{strconv.FormatInt(p.ID, 10), short(p.Name, 30), string(p.Status), step, p.Kind,
				progressOf(p.Progress), since(&p.CreatedAt, now), short(text(p.Error), 60)})
		}
		left -= len(page.Pipelines)
		filter.Cursor = page.Cursor
		if page.Cursor == "" || limit > 0 && left <= 0 {
			break
		}
	}
	if wantsJSON(c) {
		return nil
	}
	return printTable(c, "ID NAME STATUS STEP KIND PROGRESS AGE NOTE", rows)
}

func newAbortCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "abort PIPELINE",
		Short: "Cancel all of a pipeline that has not ended",
		Long: `Cancel every job of a pipeline that has not ended, and insert no next step. Those that wait end at once, those that run are told
and end cancelled. The pipeline is named by the id of its first job.

Exit code 1 when there is no such pipeline, or when nothing of it is open.`,
		Example: "  trapeze abort 4711",
		Args:    cobra.ExactArgs(1),
		RunE: onOne(func(c *cobra.Command, at *server, id int64) error {
			aborted, err := at.Abort(c.Context(), id)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				return printJSON(c, map[string]any{"pipeline": strconv.FormatInt(id, 10), "aborted": idTexts(aborted)})
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "pipeline %d is aborted: %s\n", id, countOf(len(aborted), "job", "jobs"))
			return err
		}),
	}
}

func idTexts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = strconv.FormatInt(id, 10)
	}
	return list
}
