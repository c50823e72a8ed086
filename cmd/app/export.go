package app

import (
	"github.com/spf13/cobra"
	"github.com/trapeze-run/trapeze/internal/cli/client"
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
	c.AddCommand(exportCommand("jobs", "Every job, oldest first"), exportCommand("events", "Every event, job by job, each in its order"))
	return c
}

func exportCommand(what, short string) *cobra.Command {
	return &cobra.Command{
		Use:   what,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *client.Client) error { return at.Copy(c.Context(), c.OutOrStdout(), "/admin/export/"+what) })
		},
	}
}
