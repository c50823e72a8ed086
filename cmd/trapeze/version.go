package main

import (
	"github.com/trapeze-run/trapeze/internal/cli/show"

	"github.com/trapeze-run/trapeze/internal/cli/env"

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
			if show.WantsJSON(c) {
				return show.JSON(c, map[string]any{"version": env.Version(), "schema_version": migrate.Latest(), "go": runtime.Version()})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "trapeze %s (schema version %d, %s)\n", env.Version(), migrate.Latest(), runtime.Version())
			return err
		},
	}
}
