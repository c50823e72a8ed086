package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/migrate"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

// version is the release, or what the module system knows of this build.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

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
