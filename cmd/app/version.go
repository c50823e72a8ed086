package app

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/schema"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of its schema",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if cli.WantsJSON(c) {
				return cli.JSON(c, map[string]any{"version": cli.ProgramVersion(c), "schema_version": schema.Latest(), "go": runtime.Version()})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s %s (schema version %d, %s)\n", c.Root().Name(), cli.ProgramVersion(c), schema.Latest(), runtime.Version())
			return err
		},
	}
}
