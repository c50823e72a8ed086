package app

import (
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
)

func newExportCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "export",
		Short: "Print every job or every event as JSON, one object per line",
		Long: `Print every job or every event as JSON, one object per line, from one snapshot of the database. Concurrent changes are not
included and are not blocked.`,
		Example: "  trapeze export jobs > jobs.jsonl\n  trapeze export events | jq -c 'select(.event == \"job.recovered\")'",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(exportCommand("jobs", "Every job, oldest first"), exportCommand("events", "Every event, grouped by job, in order"))
	return c
}

func exportCommand(what, short string) *cobra.Command {
	return &cobra.Command{
		Use:   what,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error { return at.Copy(c.Context(), c.OutOrStdout(), "/admin/export/"+what) })
		},
	}
}
