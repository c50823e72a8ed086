package app

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
)

func newRoutesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "routes",
		Short: "List the routes of the HTTP API and the permission that each needs",
		Long: `List the routes of the HTTP API that this program serves, and the permission that each needs; - means none. GET /metrics and
the dashboard under /ui/ are not listed.`,
		Example: "  trapeze routes\n  trapeze routes --json | jq -r 'select(.permission == \"workers:manage\") | .path'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var rows [][]string
			for _, r := range api.Routes() {
				if !cli.WantsJSON(c) {
					rows = append(rows, []string{r.Method, r.Path, string(r.Needs), r.Summary})
					continue
				}
				if err := cli.JSON(c, map[string]any{"method": r.Method, "path": r.Path, "permission": r.Needs, "summary": r.Summary}); err != nil {
					return err
				}
			}
			if cli.WantsJSON(c) {
				return nil
			}
			return cli.Table(c, "METHOD PATH PERMISSION DOES", rows)
		},
	}
}
