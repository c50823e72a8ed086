package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

func newExportCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "export",
		Short: "Print every job, or every event, as JSON, one object a line",
		Long: `Print every job, or every event, as JSON, one object a line, from one snapshot of the database: what changes meanwhile
does not appear, and nothing is held up.`,
		Example: "  trapeze export jobs > jobs.jsonl\n  trapeze export events | jq -c 'select(.event == \"job.recovered\")'",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		exportCommand("jobs", "Every job, oldest first", func(ctx context.Context, db *client, tx pgx.Tx, lines *json.Encoder) error {
			return db.Store().ExportJobs(ctx, tx, func(j job.Job) error { return lines.Encode(j) })
		}),
		exportCommand("events", "Every event, in the order of the commits", func(ctx context.Context, db *client, tx pgx.Tx, lines *json.Encoder) error {
			return db.Store().ExportEvents(ctx, tx, func(e job.Event) error { return lines.Encode(e) })
		}),
	)
	return c
}

func exportCommand(use, short string, export func(context.Context, *client, pgx.Tx, *json.Encoder) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			db, err := open(c.Context())
			if err != nil {
				return err
			}
			defer db.Close()
			return db.Store().Snapshot(c.Context(), func(tx pgx.Tx) error {
				return inLines(c.OutOrStdout(), func(lines *json.Encoder) error { return export(c.Context(), db, tx, lines) })
			})
		},
	}
}

// inLines writes JSON lines through a buffer.
func inLines(to io.Writer, write func(*json.Encoder) error) error {
	buffered := bufio.NewWriterSize(to, 1<<16)
	lines := json.NewEncoder(buffered)
	lines.SetEscapeHTML(false)
	if err := write(lines); err != nil {
		return err
	}
	return buffered.Flush()
}
