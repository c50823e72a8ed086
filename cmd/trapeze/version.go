package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/migrate"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of its schema",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if wantsJSON(c) {
				return printJSON(c, map[string]any{"version": version(), "schema_version": migrate.Latest(), "go": runtime.Version()})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "trapeze %s (schema version %d, %s)\n", version(), migrate.Latest(), runtime.Version())
			return err
		},
	}
}
